#include "serve/protocol/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "serve/protocol/message_blocks.h"
#include "serve/protocol/messages.h"

namespace switchyard::serve {
namespace {

using chat::Json;

// Fields without effect here: for the client's own records, or for services that this server is not.
constexpr std::array kSilent = {
    "metadata",        "service_tier",         "anthropic_version", "anthropic_beta",
    "betas",           "inference_geo",        "cache_control",     "speed",
    "user_profile_id", "workspace_id",         "billing_policy",    "diagnostics",
    "fallbacks",       "fallback_credit_token"};
// Fields of the other APIs that this one has not, or has under another name.
constexpr std::array kOfOtherApis = {"n",
                                     "best_of",
                                     "logprobs",
                                     "top_logprobs",
                                     "prompt_logprobs",
                                     "stream_options",
                                     "response_format",
                                     "stop",
                                     "max_completion_tokens",
                                     "max_output_tokens",
                                     "max_tokens_to_sample",
                                     "parallel_tool_calls",
                                     "functions",
                                     "function_call",
                                     "reasoning_effort",
                                     "reasoning",
                                     "verbosity",
                                     "modalities",
                                     "audio",
                                     "prediction",
                                     "web_search_options",
                                     "add_generation_prompt",
                                     "continue_final_message",
                                     "max_reasoning_tokens",
                                     "thinking_budget",
                                     "thinking_token_budget",
                                     "echo",
                                     "suffix",
                                     "prompt",
                                     "input",
                                     "instructions",
                                     "previous_response_id",
                                     "conversation",
                                     "text",
                                     "include",
                                     "background",
                                     "truncation",
                                     "max_tool_calls"};

[[noreturn]] void refuse_unbuilt(const std::string& name, const std::string& code = "") {
  throw BadRequest(name, fmt::format("{}: is not built, and would change the answer", name), code);
}

void set_tools(const Json& list, MessagesChat& chat) {
  if (!list.is_array()) throw BadRequest("tools", "tools: expected a list");
  Json tools = Json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = fmt::format("tools[{}]", i);
    const Json& tool = list[i];
    if (const Json* const type = member_of(tool, "type"); type != nullptr && *type != "custom")
      throw BadRequest(place + ".type", place + ".type: expected custom, as no other tools are built");
    for (const char* name : {"function", "parameters"}) {
      if (member_of(tool, name) != nullptr)
        throw BadRequest(fmt::format("{}.{}", place, name),
                         fmt::format("{}.{}: expected name and input_schema instead", place, name));
    }
    if (member_of(tool, "input_examples") != nullptr) refuse_unbuilt(place + ".input_examples");
    if (const Json* const defers = member_of(tool, "defer_loading"); defers != nullptr && *defers != false)
      refuse_unbuilt(place + ".defer_loading");
    Json function{{"name", text_member(tool, "name", place)}};
    if (const Json* const description = member_of(tool, "description"))
      function["description"] = *description;
    if (const Json* const schema = member_of(tool, "input_schema")) function["parameters"] = *schema;
    if (const Json* const strict = member_of(tool, "strict")) function["strict"] = *strict;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    chat.places.emplace_back(place + ".function.parameters", place + ".input_schema");
    chat.places.emplace_back(place + ".function", place);
  }
  chat.body["tools"] = std::move(tools);
}

void set_tool_choice(const Json& choice, MessagesChat& chat) {
  const std::string type = text_member(choice, "type", "tool_choice");
  if (type == "auto" || type == "none") {
    chat.body["tool_choice"] = type;
  } else if (type == "any") {
    chat.body["tool_choice"] = "required";
  } else if (type == "tool") {
    chat.body["tool_choice"] = {{"type", "function"},
                                {"function", {{"name", text_member(choice, "name", "tool_choice")}}}};
  } else {
    throw BadRequest("tool_choice.type",
                     fmt::format("tool_choice.type: expected auto, any, tool or none, got {}", type));
  }
  if (const Json* const one = member_of(choice, "disable_parallel_tool_use")) {
    if (!one->is_boolean())
      throw BadRequest("tool_choice.disable_parallel_tool_use",
                       "tool_choice.disable_parallel_tool_use: expected true or false");
    chat.body["parallel_tool_calls"] = !one->get<bool>();
  }
}

void set_thinking(const Json& thinking, MessagesChat& chat) {
  const std::string type = text_member(thinking, "type", "thinking");
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    throw BadRequest("thinking.type",
                     fmt::format("thinking.type: expected enabled, disabled or adaptive, got {}", type));
  Json& kwargs = chat.body["chat_template_kwargs"];
  if (kwargs.is_null()) kwargs = Json::object();
  if (kwargs.is_object() && !kwargs.contains("enable_thinking"))
    kwargs["enable_thinking"] = type != "disabled";
  if (const Json* const budget = member_of(thinking, "budget_tokens")) {
    chat.body["max_reasoning_tokens"] = *budget;
    chat.places.emplace_back("max_reasoning_tokens", "thinking.budget_tokens");
  }
  if (member_of(thinking, "display") == nullptr) return;
  const std::string display = text_member(thinking, "display", "thinking");
  if (display != "summarized" && display != "omitted")
    throw BadRequest("thinking.display",
                     fmt::format("thinking.display: expected summarized or omitted, got {}", display));
  if (display == "omitted") chat.body["include_reasoning"] = false;
}

// {"type": "json_schema", "schema": …} holds the text to the schema.
void set_format(const Json& format, const std::string& place, MessagesChat& chat) {
  if (chat.body.contains("response_format"))
    throw BadRequest(place, place + ": output_config.format asks for a form of the answer already");
  const std::string type = text_member(format, "type", place);
  if (type != "json_schema")
    throw BadRequest(place + ".type", fmt::format("{}.type: expected json_schema, got {}", place, type));
  const Json* const schema = member_of(format, "schema");
  if (schema == nullptr || !schema->is_object())
    throw BadRequest(place + ".schema", place + ".schema: expected an object, a JSON schema",
                     "invalid_schema");
  chat.body["response_format"] = {{"type", "json_schema"},
                                  {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
  chat.places.emplace_back("response_format.json_schema.schema", place + ".schema");
  chat.places.emplace_back("response_format", place);
}

void set_output_config(const Json& config, bool takes_effort, MessagesChat& chat) {
  if (!config.is_object()) throw BadRequest("output_config", "output_config: expected an object");
  for (const auto& [name, value] : config.items()) {
    const std::string place = "output_config." + name;
    if (value.is_null()) continue;
    if (name == "format") {
      set_format(value, place, chat);
    } else if (name == "effort") {
      const std::string effort = text_member(config, "effort", "output_config");
      constexpr std::array<std::string_view, 5> kEfforts = {"low", "medium", "high", "xhigh", "max"};
      if (std::ranges::find(kEfforts, effort) == kEfforts.end())
        throw BadRequest(place,
                         fmt::format("{}: expected low, medium, high, xhigh or max, got {}", place, effort));
      if (takes_effort) {
        chat.body["reasoning_effort"] = effort;
      } else if (effort != "high") {  // which is the same as none
        throw BadRequest(place,
                         fmt::format("{}: expected high or none, as this model's chat template reads no "
                                     "effort, got {}",
                                     place, effort));
      }
    } else {
      refuse_unbuilt(place);
    }
  }
}

// Thinking that is kept is not cleared.
bool clears_nothing(const Json& edit) {
  const Json* const type = member_of(edit, "type");
  const Json* const kept = member_of(edit, "keep");
  return type != nullptr && *type == "clear_thinking_20251015" && kept != nullptr && *kept == "all";
}

// Returns whether a field of services that are not here asks for nothing.
bool is_empty(const std::string& name, const Json& value) {
  if (value == "" || (value.is_structured() && value.empty())) return true;
  if (name != "context_management" || !value.is_object() || value.size() != 1) return false;
  const Json* const edits = member_of(value, "edits");
  return edits != nullptr && edits->is_array() && std::all_of(edits->begin(), edits->end(), clears_nothing);
}

bool is_among(const auto& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

MessagesChat chat_of_messages(const Json& body, bool takes_effort) {
  MessagesChat chat;
  for (const auto& [name, value] : body.items()) {
    if (is_among(kSilent, name) || value.is_null()) continue;
    if (is_among(kOfOtherApis, name))
      throw BadRequest(name, fmt::format("{}: is no field of this API", name), "unknown_field");
    if (name == "messages" || name == "system" || name == "thinking" || name == "output_format") continue;
    if (name == "tools") {
      set_tools(value, chat);
    } else if (name == "tool_choice") {
      set_tool_choice(value, chat);
    } else if (name == "stop_sequences") {
      chat.body["stop"] = value;
      chat.places.emplace_back("stop", "stop_sequences");
    } else if (name == "output_config") {
      set_output_config(value, takes_effort, chat);
    } else if (name == "mcp_servers" || name == "container" || name == "context_management") {
      if (!is_empty(name, value)) refuse_unbuilt(name);
    } else if (name == "compaction") {
      refuse_unbuilt(name);
    } else if (name == "thread") {
      // A client would go on with a part of the conversation. By the code it knows that it
      // must send all of it.
      refuse_unbuilt(name, kNoThreads);
    } else {
      chat.body[name] = value;  // others are treated as a chat's
    }
  }
  if (!chat.body.contains("max_tokens"))
    throw BadRequest("max_tokens", "max_tokens: expected a number, got none");
  if (const Json* const format = member_of(body, "output_format")) set_format(*format, "output_format", chat);
  if (const Json* const thinking = member_of(body, "thinking")) set_thinking(*thinking, chat);
  add_messages(body, chat);
  if (chat.body.contains("continue_final_message") && chat.body.contains("response_format"))
    throw BadRequest("messages",
                     "messages: expected a last message of the user, as an answer with a form of its own "
                     "goes on with no text");
  return chat;
}

BadRequest in_words_of_messages(const BadRequest& error, const MessagesChat& chat) {
  for (const auto& [place, own] : chat.places) {  // longer ones stand before their beginnings
    const bool is_below = error.field.starts_with(place) &&
                          (error.field.size() == place.size() || error.field[place.size()] == '.' ||
                           error.field[place.size()] == '[');
    if (!is_below) continue;
    std::string rest = error.field.substr(place.size());
    if (rest.starts_with(".content") && own.ends_with(".content"))
      rest.erase(0, std::string_view(".content").size());
    const std::string message = error.what();
    const bool names_it = message.starts_with(error.field);
    return {own + rest, names_it ? own + rest + message.substr(error.field.size()) : message, error.code,
            error.status};
  }
  return error;
}

namespace {

template <typename Read>
auto read_chat(const Json& body, const ServedModel& model, const Read& read) {
  const auto reads_effort = [&](const std::string& text) {
    return text.find("reasoning_effort") != text.npos;
  };
  const bool takes_effort = model.chat != nullptr && (reads_effort(model.chat->prompts.source().text) ||
                                                      reads_effort(model.chat->prompts.source().tool_text));
  const MessagesChat chat = chat_of_messages(body, takes_effort);
  try {
    return read(chat.body);
  } catch (const BadRequest& error) {
    throw in_words_of_messages(error, chat);
  }
}

}  // namespace

ChatRequest parse_messages(const Json& body, const ServedModel& model, std::uint32_t own_seed,
                           std::int64_t key) {
  return read_chat(body, model, [&](const Json& chat) { return parse_chat(chat, model, own_seed, key); });
}

std::size_t count_tokens_of_messages(Json body, const ServedModel& model, std::int64_t key) {
  body["max_tokens"] = 1;
  return read_chat(body, model,
                   [&](const Json& chat) { return prompt_of_chat(chat, model, key).tokens.size(); });
}

}  // namespace switchyard::serve
