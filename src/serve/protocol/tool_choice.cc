#include "serve/protocol/tool_choice.h"

#include <fmt/format.h>

#include "serve/protocol/fields.h"

namespace switchyard::serve {
namespace {

using chat::Json;

constexpr const char* kToolChoice = "tool_choice";

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

const Json* tool_named(const Json& tools, const std::string& name) {
  for (const Json& tool : tools) {
    const Json* const function = member(tool, "function");
    const Json* const own = function == nullptr ? nullptr : member(*function, "name");
    if (own != nullptr && own->is_string() && *own == name) return &tool;
  }
  return nullptr;
}

// Returns the tool that {"type": "function", "function": {"name": …}} names.
const Json& chosen_tool(const Json& choice, const Json& tools, const std::string& field) {
  const Json* const function = member(choice, "function");
  const Json* const name = function != nullptr ? member(*function, "name") : member(choice, "name");
  if (name == nullptr || !name->is_string())
    throw BadRequest(
        field, fmt::format("{}: expected {{\"type\": \"function\", \"function\": {{\"name\": …}}}}", field));
  const Json* const tool = tools.is_array() ? tool_named(tools, name->get<std::string>()) : nullptr;
  if (tool == nullptr)
    throw BadRequest(field, fmt::format("{}: expected the name of one of the tools, got {}", field,
                                        name->get<std::string>()));
  return *tool;
}

void restrict_tools(ToolChoice& choice, const Json& allowed) {
  const Json* const object = member(allowed, "allowed_tools");
  const Json& list = object == nullptr ? allowed : *object;
  const Json* const mode = member(list, "mode");
  const Json* const names = member(list, "tools");
  const bool is_required = mode != nullptr && *mode == "required";
  if (mode != nullptr && !is_required && *mode != "auto")
    throw BadRequest(kToolChoice, "tool_choice.allowed_tools.mode: expected auto or required");
  if (names == nullptr || !names->is_array() || names->empty())
    throw BadRequest(kToolChoice, "tool_choice.allowed_tools.tools: expected a list of tools");
  Json kept = Json::array();
  for (const Json& one : *names) kept.push_back(chosen_tool(one, choice.tools, kToolChoice));
  choice.restricted = kept.size() < choice.tools.size();
  choice.tools = std::move(kept);
  choice.mode = is_required ? ToolChoice::Mode::required : ToolChoice::Mode::automatic;
}

}  // namespace

ToolChoice tool_choice_of(const Json& body) {
  using Mode = ToolChoice::Mode;
  ToolChoice choice;
  if (const Json* const tools = member(body, "tools");
      tools != nullptr && tools->is_array() && !tools->empty())
    choice.tools = *tools;
  choice.mode = choice.tools.is_null() ? Mode::none : Mode::automatic;
  const Json* const field = member(body, kToolChoice);
  if (field == nullptr) return choice;
  if (field->is_string()) {
    const auto word = field->get<std::string>();
    if (word == "none") {
      choice.mode = Mode::none;
      choice.tools = nullptr;
    } else if (word == "required" || word == "any") {
      if (choice.tools.is_null())
        throw BadRequest(kToolChoice, "tool_choice: required, but there are no tools");
      choice.mode = Mode::required;
    } else if (word != "auto") {
      throw BadRequest(kToolChoice,
                       fmt::format("tool_choice: expected auto, none, required or a tool, got {}", word));
    }
    return choice;
  }
  const Json* const type = member(*field, "type");
  if (type != nullptr && *type == "function") {
    Json only = Json::array({chosen_tool(*field, choice.tools, kToolChoice)});
    choice.tools = std::move(only);
    choice.mode = Mode::required;
  } else if (type != nullptr && *type == "allowed_tools") {
    restrict_tools(choice, *field);
  } else {
    throw BadRequest(kToolChoice,
                     "tool_choice: expected auto, none, required, or an object of type function or "
                     "allowed_tools");
  }
  return choice;
}

}  // namespace switchyard::serve
