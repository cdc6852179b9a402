#include "chat/messages.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "chat/jinja/template.h"

namespace switchyard::chat {
namespace {

constexpr int kDeepestArguments = 100;

[[noreturn]] void refuse_message(const std::string& field, const std::string& expected) {
  throw BadRequest(field, fmt::format("{}: expected {}", field, expected), "invalid_value");
}

// The text of a part of a message's content.
std::string part_text(const Json& part, const std::string& field) {
  if (!part.is_object()) refuse_message(field, "an object");
  const auto type = part.find("type");
  if (type == part.end() || (*type != "text" && *type != "input_text" && *type != "refusal"))
    refuse_message(field + ".type", "\"text\": this model reads text only");
  const char* key = *type == "refusal" ? "refusal" : "text";
  const auto text = part.find(key);
  if (text == part.end() || !text->is_string()) refuse_message(fmt::format("{}.{}", field, key), "a text");
  return text->get<std::string>();
}

Json template_content(const Json& content, const std::string& field, bool takes_parts) {
  if (content.is_string()) return content;
  if (!content.is_array()) refuse_message(field, "a text or a list of parts");
  Json parts = Json::array();
  std::string joined;
  for (std::size_t i = 0; i < content.size(); ++i) {
    const std::string text = part_text(content[i], fmt::format("{}[{}]", field, i));
    joined += (i > 0 ? "\n" : "") + text;
    Json part = content[i];
    part.erase("refusal");
    part["type"] = "text";
    part["text"] = text;
    parts.push_back(std::move(part));
  }
  return takes_parts ? parts : Json(joined);
}

// The object that a text of arguments is; none where the model wrote no such JSON, or more than
// `kDeepestArguments` levels of it.
std::optional<Json> parsed_arguments(const std::string& text) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return Json::object();
  bool too_deep = false;
  Json arguments = Json::parse(
      text,
      [&](int depth, Json::parse_event_t, Json&) {
        too_deep = too_deep || depth > kDeepestArguments;
        return !too_deep;
      },
      false);
  if (too_deep) return {};
  if (arguments.is_null()) return Json::object();
  return arguments.is_object() ? std::optional(std::move(arguments)) : std::nullopt;
}

// Writes JSON as Python's json does, since that is the form that templates were written for.
std::string python_json(const Json& value) {
  static const auto writer = jinja::Template::parse("{{ value | tojson }}");
  return writer.render(Json::object(), {{"value", value}}, {}).text;
}

// A model may have written arguments that are no object. They stay in the conversation as they are.
void pass_arguments(Json& function, const TemplateTakes& takes) {
  Json& arguments = function["arguments"];
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object() && !arguments.is_string()) arguments = python_json(arguments);
  if (arguments.is_object()) {
    if (!takes.argument_objects) arguments = arguments.empty() ? "{}" : python_json(arguments);
    return;
  }
  const auto text = arguments.get<std::string>();
  std::optional<Json> object = parsed_arguments(text);
  if (!takes.argument_objects) {
    if (object && object->empty() && text.find('{') == std::string::npos) arguments = "{}";
  } else if (object || !takes.argument_texts) {
    arguments = object ? std::move(*object) : Json::object();
  }
}

void pass_calls(Json& message, const std::string& field, const TemplateTakes& takes) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_array()) refuse_message(field + ".tool_calls", "a list");
  for (std::size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    const std::string path = fmt::format("{}.tool_calls[{}]", field, i);
    if (!call.is_object()) refuse_message(path, "an object");
    if (call.contains("type") && call.at("type").is_null()) call.erase("type");
    if (call.contains("id") && call.at("id").is_null()) call.erase("id");
    if (call.contains("type") && call.at("type") != "function")
      refuse_message(path + ".type", "\"function\"");
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) refuse_message(path + ".function", "an object");
    if (!function->contains("name") || !function->at("name").is_string())
      refuse_message(path + ".function.name", "a text");
    pass_arguments(*function, takes);
  }
}

// The first of a message's names for reasoning goes under both names that templates read.
Json with_reasoning(Json message) {
  for (const char* key : {"reasoning_content", "thinking", "reasoning"}) {
    const auto found = message.find(key);
    if (found == message.end()) continue;
    const Json reasoning = *found;
    Json passed = Json::object();
    passed["thinking"] = reasoning;
    for (auto& [name, value] : message.items()) passed[name] = value;
    passed["reasoning_content"] = reasoning;
    return passed;
  }
  return message;
}

Json template_message(const Json& sent, const std::string& field, const TemplateTakes& takes) {
  if (!sent.is_object()) refuse_message(field, "an object");
  Json message = Json::object();
  for (const auto& [key, value] : sent.items()) {
    if (!value.is_null()) message[key] = value;
  }
  if (!message.contains("role") || !message.at("role").is_string()) refuse_message(field + ".role", "a text");
  if (message.at("role") == "function")
    refuse_message(field + ".role", "\"tool\": the role function was replaced by it in 2023");
  if (message.contains("function_call"))
    refuse_message(field + ".function_call", "tool_calls: function_call was replaced by them in 2023");
  if (message.at("role") == "developer" && !takes.developer) message["role"] = "system";
  message["content"] = message.contains("content")
                           ? template_content(message.at("content"), field + ".content", takes.parts)
                           : Json("");
  pass_calls(message, field, takes);
  const bool calls = message.contains("tool_calls") && !message.at("tool_calls").empty();
  if (calls && takes.calls_without_content && message.at("content") == "") message["content"] = nullptr;
  return with_reasoning(std::move(message));
}

}  // namespace

Json template_messages(const Json& body, const TemplateTakes& takes) {
  const auto sent = body.find("messages");
  if (sent == body.end() || !sent->is_array() || sent->empty())
    refuse_message("messages", "a list of one message or more");
  Json messages = Json::array();
  for (std::size_t i = 0; i < sent->size(); ++i)
    messages.push_back(template_message((*sent)[i], fmt::format("messages[{}]", i), takes));
  return messages;
}

}  // namespace switchyard::chat
