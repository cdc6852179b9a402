#include "serve/protocol/answer_constraint.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "chat/call_form.h"
#include "serve/protocol/call_grammar.h"
#include "serve/protocol/fields.h"

namespace switchyard::serve {
namespace {

using chat::Json;
using grammar::Grammar;
using grammar::Vocabulary;

constexpr const char* kInvalidSchema = "invalid_schema";

const Json* part_of(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// The form that a request asks of the content.
struct ContentRule {
  enum class Kind { schema, object, regex, choice };
  Kind kind;
  std::string field;  // that asks for it
  Json value;
};

// vLLM takes a schema as its text, too.
Json schema_of(const Json& value, const std::string& field) {
  Json schema = value.is_string() ? Json::parse(value.get<std::string>(), nullptr, false) : value;
  if (!schema.is_object() && !schema.is_boolean())
    throw BadRequest(field, fmt::format("{}: expected a JSON schema", field), kInvalidSchema);
  return schema;
}

void add_response_format(const Json& format, std::vector<ContentRule>& rules) {
  const Json* const type = part_of(format, "type");
  if (type == nullptr || !type->is_string())
    throw BadRequest("response_format.type",
                     "response_format.type: expected text, json_object or json_schema, got none");
  if (*type == "text") return;
  if (*type == "json_object") {
    const Json* const schema = part_of(format, "schema");
    if (schema == nullptr)
      rules.push_back({ContentRule::Kind::object, "response_format", nullptr});
    else
      rules.push_back({ContentRule::Kind::schema, "response_format.schema",
                       schema_of(*schema, "response_format.schema")});
  } else if (*type == "json_schema") {
    constexpr const char* kField = "response_format.json_schema.schema";
    const Json* const holder = part_of(format, "json_schema");
    const Json* const schema = holder != nullptr ? part_of(*holder, "schema") : part_of(format, "schema");
    if (schema == nullptr)
      throw BadRequest(kField, fmt::format("{}: expected a JSON schema, got none", kField), kInvalidSchema);
    rules.push_back({ContentRule::Kind::schema, kField, schema_of(*schema, kField)});
  } else {
    throw BadRequest("response_format.type",
                     fmt::format("response_format.type: expected text, json_object or json_schema, got {}",
                                 type->get<std::string>()));
  }
}

void add_rule(const Json& value, const std::string& kind, const std::string& field,
              std::vector<ContentRule>& rules) {
  using Kind = ContentRule::Kind;
  if (kind == "json") {
    rules.push_back({Kind::schema, field, schema_of(value, field)});
  } else if (kind == "json_object") {
    if (value == true) rules.push_back({Kind::object, field, nullptr});
  } else if (kind == "regex") {
    if (!value.is_string()) throw BadRequest(field, field + ": expected a regular expression");
    rules.push_back({Kind::regex, field, value});
  } else if (kind == "choice") {
    const bool are_texts =
        value.is_array() && !value.empty() &&
        std::all_of(value.begin(), value.end(), [](const Json& text) { return text.is_string(); });
    if (!are_texts) throw BadRequest(field, field + ": expected a list of one text or more");
    rules.push_back({Kind::choice, field, value});
  } else {
    throw BadRequest(field, fmt::format("{}: is not built, and would change the answer", field));
  }
}

std::optional<ContentRule> content_rule(const Json& body) {
  std::vector<ContentRule> rules;
  if (const Json* const format = part_of(body, "response_format")) add_response_format(*format, rules);
  if (const Json* const outputs = part_of(body, "structured_outputs")) {
    if (!outputs->is_object())
      throw BadRequest("structured_outputs", "structured_outputs: expected an object");
    for (const auto& [kind, value] : outputs->items()) {
      if (!value.is_null()) add_rule(value, kind, "structured_outputs." + kind, rules);
    }
  }
  for (const char* kind : {"json", "regex", "choice"}) {
    const std::string field = std::string("guided_") + kind;
    if (const Json* const value = part_of(body, field.c_str())) add_rule(*value, kind, field, rules);
  }
  if (rules.size() > 1)
    throw BadRequest(rules[1].field, fmt::format("{}: {} asks for a form of the answer already",
                                                 rules[1].field, rules[0].field));
  return rules.empty() ? std::nullopt : std::optional(rules[0]);
}

std::shared_ptr<const Grammar> grammar_of(const ContentRule& rule, const Vocabulary& vocabulary) {
  switch (rule.kind) {
    case ContentRule::Kind::schema:
      return Grammar::of_json_schema(vocabulary, rule.value);
    case ContentRule::Kind::object:
      return Grammar::of_json_object(vocabulary);
    case ContentRule::Kind::regex:
      return Grammar::of_regex(vocabulary, rule.value.get<std::string>());
    case ContentRule::Kind::choice:
      break;
  }
  return Grammar::of_choice(vocabulary, rule.value.get<std::vector<std::string>>());
}

// gpt-oss writes its reasoning as a message of its own before its calls or its answer: the grammar
// allows that message.
std::vector<grammar::Part> behind_analysis(std::vector<grammar::Part> parts) {
  grammar::Choice analysis;
  analysis.of.resize(2);  // with it, or without
  analysis.of[0].push_back({grammar::ExactText{"<|channel|>analysis<|message|>"}});
  analysis.of[0].push_back({grammar::FreeText{"<|end|>"}});
  analysis.of[0].push_back({grammar::ExactText{"<|start|>assistant"}});
  parts.insert(parts.begin(), {std::move(analysis)});
  return parts;
}

std::vector<grammar::Part> content_parts(Json schema, bool is_harmony) {
  std::vector<grammar::Part> parts;
  if (is_harmony)
    parts.push_back({grammar::ExactText{std::string(chat::reasoning_end(chat::Format::harmony))}});
  parts.push_back({grammar::SchemaText{std::move(schema)}});
  return parts;
}

// The schema of what the content must be, where it is JSON.
std::optional<Json> json_schema(const ContentRule& rule) {
  if (rule.kind == ContentRule::Kind::object) return Json{{"type", "object"}};
  return rule.kind == ContentRule::Kind::schema ? std::optional(rule.value) : std::nullopt;
}

bool is_strict(const Json& tool) {
  const Json* const function = part_of(tool, "function");
  const Json* const strict = function == nullptr ? nullptr : part_of(*function, "strict");
  return strict != nullptr && *strict == true;
}

// The arguments of a tool that need not keep its schema: any object or, one by one, any values by its names.
Json any_arguments(const Json& function, bool one_by_one) {
  Json any{{"type", "object"}};
  const Json* const parameters = part_of(function, "parameters");
  const Json* const properties = parameters == nullptr ? nullptr : part_of(*parameters, "properties");
  if (!one_by_one || properties == nullptr || !properties->is_object()) return any;
  for (const auto& [name, schema] : properties->items()) any["properties"][name] = Json::object();
  return any;
}

// The form of calls of the tools, by the schemas of those that must keep theirs.
chat::CallForm form_of_calls(const ToolChoice& choice, chat::Format format,
                             const std::string& template_text) {
  chat::CallForm form = chat::call_form(format, choice.tools, template_text);
  if (choice.mode == ToolChoice::Mode::required || choice.tools.is_null()) return form;
  Json tools = choice.tools;
  for (Json& tool : tools) {
    if (!is_strict(tool)) tool["function"]["parameters"] = any_arguments(tool["function"], form.one_by_one);
  }
  return chat::call_form(format, tools, template_text);
}

const Vocabulary& vocabulary_of(const ServedModel& model, const std::string& field) {
  if (model.vocabulary == nullptr)
    throw BadRequest(field,
                     fmt::format("{}: this build has no grammars (scripts/install_dependencies.sh fetches "
                                 "what they need)",
                                 field),
                     "not_supported", 501);
  return *model.vocabulary;
}

}  // namespace

Constraint constraint_of(const Json& body, const ToolChoice& choice, chat::Format format, bool one_call,
                         const ServedModel& model) {
  using Mode = ToolChoice::Mode;
  const std::optional<ContentRule> rule = content_rule(body);
  const bool has_tools = !choice.tools.is_null();
  const bool strict =
      has_tools && (choice.restricted || std::any_of(choice.tools.begin(), choice.tools.end(), is_strict));
  const bool holds_calls = choice.mode == Mode::required || (choice.mode == Mode::automatic && strict);
  std::string field = rule ? rule->field : "tools";
  try {
    if (!holds_calls && !rule) return {};
    const Vocabulary& vocabulary = vocabulary_of(model, field);
    const bool is_harmony = format == chat::Format::harmony;
    if (!holds_calls && !has_tools) {
      const std::optional<Json> schema = json_schema(*rule);
      if (!is_harmony || !schema) return {grammar_of(*rule, vocabulary), ""};
      return {Grammar::of_parts(vocabulary, behind_analysis(content_parts(*schema, true))), "", true};
    }
    const chat::CallForm form = form_of_calls(choice, format, model.chat->prompts.source().text);
    if (form.calls.empty()) {
      if (!holds_calls) return {grammar_of(*rule, vocabulary), ""};
      throw BadRequest("tool_choice", fmt::format("tool_choice: this model's format ({}) has no calls",
                                                  chat::name_of(format)));
    }
    if (choice.mode == Mode::required) {
      if (rule)
        throw BadRequest(rule->field,
                         fmt::format("{}: an answer that must be a call has no other form", rule->field));
      field = "tools";
      std::vector<grammar::Part> parts = call_parts(form, one_call, false);
      if (is_harmony) parts = behind_analysis(std::move(parts));
      return {Grammar::of_parts(vocabulary, parts), "", is_harmony};
    }
    if (rule) {
      // Calls, or content in the form that is asked for.
      const std::optional<Json> schema = json_schema(*rule);
      if (!schema) throw BadRequest(rule->field, fmt::format("{}: expected no tools beside it", rule->field));
      grammar::Choice either;
      either.of.push_back(call_parts(form, one_call, false));
      either.of.push_back(content_parts(*schema, is_harmony));
      std::vector<grammar::Part> parts;
      parts.push_back({std::move(either)});
      if (is_harmony) parts = behind_analysis(std::move(parts));
      return {Grammar::of_parts(vocabulary, parts), "", is_harmony};
    }
    if (form.marker.empty())
      throw BadRequest("tools",
                       "tools: strict, where calls are optional, needs a format of calls with a marker; "
                       "this model's has none: use tool_choice");
    return {Grammar::of_parts(vocabulary, call_parts(form, one_call, true)), form.marker};
  } catch (const grammar::GrammarError& error) {
    throw BadRequest(field, fmt::format("{}: {}", field, error.what()), kInvalidSchema);
  }
}

}  // namespace switchyard::serve
