#include "chat/call_form.h"

#include <fmt/format.h>

#include <algorithm>

#include "chat/formats/table.h"

namespace switchyard::chat {
namespace {

// The form of one call; the tool's name stands between `begin` and `after_name`.
struct CallTexts {
  std::string begin = {}, after_name = {}, after_number = {}, end = {};
  // The texts around each key and behind each value, where arguments are given one by one.
  std::string key_begin = {}, key_end = {}, value_end = {}, end_tag = {};
};

const Json& parameters_of(const Json& function) {
  static const Json any_object = Json{{"type", "object"}};
  const auto found = function.find("parameters");
  return found != function.end() && found->is_object() ? *found : any_object;
}

bool is_required(const Json& parameters, const std::string& key) {
  const auto found = parameters.find("required");
  return found != parameters.end() && found->is_array() &&
         std::ranges::any_of(*found, [&](const Json& name) { return name == key; });
}

// References of a parameter's schema point into the tool's, whose definitions it takes along.
Json schema_of_parameter(const Json& parameters, const Json& schema) {
  if (!schema.is_object()) return schema;
  Json result = schema;
  for (const char* key : {"$defs", "definitions"})
    if (parameters.contains(key) && !result.contains(key)) result[key] = parameters[key];
  return result;
}

std::vector<CallParameter> call_parameters(const Json& parameters, const CallTexts& texts) {
  std::vector<CallParameter> result;
  const auto properties = parameters.find("properties");
  if (properties == parameters.end() || !properties->is_object()) return result;
  for (const auto& [key, schema] : properties->items()) {
    // A value that is a text stands without quotes where tags end it.
    const formats::JsonTypes types = formats::types_of_schema(schema, parameters);
    const bool tagged = !texts.end_tag.empty();
    result.push_back({.begin = texts.key_begin + key + texts.key_end,
                      .schema = schema_of_parameter(parameters, schema),
                      .may_be_text = tagged && (types.is_text() || types.has(formats::JsonTypes::text)),
                      .is_text = tagged && types.is_text(),
                      .end_tag = texts.end_tag,
                      .end = texts.value_end,
                      .required = is_required(parameters, key)});
  }
  return result;
}

void add_calls(CallForm& form, const Json& tools, const CallTexts& texts) {
  form.end_tag = texts.end_tag;
  form.one_by_one = !texts.key_begin.empty() || !texts.key_end.empty();
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = formats::function_of_tool(tool);
    if (function == nullptr || !function->contains("name") || !(*function)["name"].is_string()) continue;
    ToolCallForm call;
    call.name = (*function)["name"].get<std::string>();
    call.begin = texts.begin + call.name + texts.after_name;
    call.after_number = texts.after_number;
    call.end = texts.end;
    if (form.one_by_one)
      call.parameters = call_parameters(parameters_of(*function), texts);
    else
      call.arguments = parameters_of(*function);
    form.calls.push_back(std::move(call));
  }
}

CallForm form_of(CallForm form, const Json& tools, const CallTexts& texts) {
  add_calls(form, tools, texts);
  return form;
}

CallForm deepseek_form(const Json& tools, const CallTexts& call) {
  return form_of({.marker = "<｜tool▁calls▁begin｜>",
                  .begin = "<｜tool▁calls▁begin｜>",
                  .separator = call.end.front() == '\n' ? "\n" : "",
                  .end = "<｜tool▁calls▁end｜>",
                  .several = true},
                 tools, call);
}

CallForm mistral_form(const Json& tools, bool named) {
  if (named)
    return form_of({.marker = "[TOOL_CALLS]", .several = true}, tools,
                   {.begin = "[TOOL_CALLS]", .after_name = "[ARGS]"});
  return form_of(
      {.marker = "[TOOL_CALLS]", .begin = "[TOOL_CALLS][", .separator = ", ", .end = "]", .several = true},
      tools, {.begin = "{\"name\": \"", .after_name = "\", \"arguments\": ", .end = "}"});
}

CallForm glm4_form(const Json& tools, bool one_line) {
  const std::string line = one_line ? "" : "\n";
  return form_of({.marker = "<tool_call>", .separator = "\n", .several = true}, tools,
                 {.begin = "<tool_call>",
                  .after_name = line,
                  .end = "</tool_call>",
                  .key_begin = "<arg_key>",
                  .key_end = "</arg_key>" + line + "<arg_value>",
                  .value_end = "</arg_value>" + line,
                  .end_tag = "</arg_value>"});
}

// `suffix`: that of each tag.
CallForm hy_v3_form(const Json& tools, const std::string& suffix) {
  const auto tag = [&](std::string_view name) { return fmt::format("<{}{}>", name, suffix); };
  return form_of({.marker = tag("tool_calls"),
                  .begin = tag("tool_calls") + "\n",
                  .separator = "\n",
                  .end = "\n" + tag("/tool_calls"),
                  .several = true},
                 tools,
                 {.begin = tag("tool_call"),
                  .after_name = tag("tool_sep") + "\n",
                  .end = tag("/tool_call"),
                  .key_begin = tag("arg_key"),
                  .key_end = tag("/arg_key") + "\n" + tag("arg_value"),
                  .value_end = tag("/arg_value") + "\n",
                  .end_tag = tag("/arg_value")});
}

// `line`: what stands between a value and its tags.
CallForm qwen3_coder_form(const Json& tools, const std::string& line) {
  return form_of({.marker = "<tool_call>", .separator = "\n", .several = true}, tools,
                 {.begin = "<tool_call>\n<function=",
                  .after_name = ">\n",
                  .end = "</function>\n</tool_call>",
                  .key_begin = "<parameter=",
                  .key_end = ">" + line,
                  .value_end = line + "</parameter>\n",
                  .end_tag = "</parameter>"});
}

}  // namespace

CallForm call_form(Format format, const Json& tools, std::string_view template_text) {
  const auto shows = [&](std::string_view text) {
    return template_text.find(text) != std::string_view::npos;
  };
  switch (format) {
    case Format::none:
    case Format::think:
      return {};
    case Format::hermes:
    case Format::ernie4_5:
      return form_of({.marker = "<tool_call>", .separator = "\n", .several = true}, tools,
                     {.begin = "<tool_call>\n{\"name\": \"",
                      .after_name = "\", \"arguments\": ",
                      .end = "}\n</tool_call>"});
    case Format::llama3_json:
      return form_of({.separator = "; ", .several = true}, tools,
                     {.begin = "{\"name\": \"", .after_name = "\", \"parameters\": ", .end = "}"});
    case Format::llama4_pythonic: {
      CallForm form{
          .begin = "[", .separator = ", ", .end = "]", .several = true, .parameter_separator = ", "};
      return form_of(std::move(form), tools, {.after_name = "(", .end = ")", .key_end = "="});
    }
    case Format::mistral:
      return mistral_form(tools, shows("[ARGS]"));
    case Format::harmony:  // the end token <|call|> ends the text behind the arguments
      return form_of(
          {.marker = "<|channel|>commentary to="}, tools,
          {.begin = "<|channel|>commentary to=functions.", .after_name = " <|constrain|>json<|message|>"});
    case Format::kimi_k2:
      return form_of({.marker = "<|tool_calls_section_begin|>",
                      .begin = "<|tool_calls_section_begin|>",
                      .end = "<|tool_calls_section_end|>",
                      .several = true,
                      .numbered = true},
                     tools,
                     {.begin = "<|tool_call_begin|>functions.",
                      .after_name = ":",
                      .after_number = "<|tool_call_argument_begin|>",
                      .end = "<|tool_call_end|>"});
    case Format::deepseek_v3_1:
      return deepseek_form(
          tools,
          {.begin = "<｜tool▁call▁begin｜>", .after_name = "<｜tool▁sep｜>", .end = "<｜tool▁call▁end｜>"});
    case Format::deepseek_v3:
      return deepseek_form(tools, {.begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                                   .after_name = "\n```json\n",
                                   .end = "\n```<｜tool▁call▁end｜>"});
    case Format::glm4:
      return glm4_form(tools, shows("</arg_key><arg_value>"));
    case Format::hy_v3:
      return hy_v3_form(tools, ":opensource");
    case Format::hy_v3_preview:
      return hy_v3_form(tools, "");
    case Format::qwen3_coder:
      return qwen3_coder_form(tools, "\n");
    case Format::mimo:
      return qwen3_coder_form(tools, "");
    case Format::minimax_m2:
      return form_of({.marker = "<minimax:tool_call>",
                      .begin = "<minimax:tool_call>\n",
                      .separator = "\n",
                      .end = "\n</minimax:tool_call>",
                      .several = true},
                     tools,
                     {.begin = "<invoke name=\"",
                      .after_name = "\">\n",
                      .end = "</invoke>",
                      .key_begin = "<parameter name=\"",
                      .key_end = "\">",
                      .value_end = "</parameter>\n",
                      .end_tag = "</parameter>"});
  }
  return {};
}

std::string_view reasoning_begin(Format format) {
  const formats::FormatRow& row = formats::format_row(format);
  return row.reasoning.empty() ? std::string_view() : row.reasoning.front().begin;
}

std::string_view reasoning_end(Format format) {
  return formats::format_row(format).reasoning_end;
}

std::span<const std::string_view> end_texts(Format format) {
  return formats::format_row(format).ends;
}

std::string make_call_id(Format format, std::mt19937_64& random) {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::uniform_int_distribution<std::size_t> pick(0, kCharacters.size() - 1);
  std::string id = format == Format::mistral ? "" : "call_";
  const std::size_t size = format == Format::mistral ? 9 : id.size() + 24;
  while (id.size() < size) id += kCharacters[pick(random)];
  return id;
}

}  // namespace switchyard::chat
