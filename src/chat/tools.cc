#include "chat/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace switchyard::chat {
namespace {

constexpr std::size_t kMostTools = 128, kLongestToolName = 128;

bool is_there(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null();
}

bool is_tool_name(const std::string& name) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  return !name.empty() && name.size() <= kLongestToolName &&
         name.find_first_not_of(kAllowed) == std::string::npos;
}

[[noreturn]] void refuse_tool(const std::string& field, const std::string& expected) {
  throw BadRequest(field, fmt::format("{}: expected {}", field, expected), "invalid_value");
}

void check_tool(const Json& tool, const std::string& field) {
  if (!tool.is_object()) refuse_tool(field, "an object");
  if (!is_there(tool, "type") || tool.at("type") != "function") refuse_tool(field + ".type", "\"function\"");
  if (!is_there(tool, "function") || !tool.at("function").is_object())
    refuse_tool(field + ".function", "an object");
  const Json& function = tool.at("function");
  if (!is_there(function, "name") || !function.at("name").is_string() ||
      !is_tool_name(function.at("name").get<std::string>()))
    refuse_tool(field + ".function.name", "1 to 128 letters, digits, _, . or -");
  if (is_there(function, "description") && !function.at("description").is_string())
    refuse_tool(field + ".function.description", "a text");
  if (is_there(function, "parameters") && !function.at("parameters").is_object())
    refuse_tool(field + ".function.parameters", "an object, a JSON schema");
  if (is_there(function, "strict") && !function.at("strict").is_boolean())
    refuse_tool(field + ".function.strict", "true or false");
}

}  // namespace

Json checked_tools(const Json& body) {
  if (!is_there(body, "tools")) return nullptr;
  const Json& tools = body.at("tools");
  if (!tools.is_array()) refuse_tool("tools", "a list");
  if (tools.size() > kMostTools) refuse_tool("tools", fmt::format("at most {} tools", kMostTools));
  for (std::size_t i = 0; i < tools.size(); ++i) check_tool(tools[i], fmt::format("tools[{}]", i));
  return tools.empty() ? Json(nullptr) : tools;
}

Json offered_tools(const Json& body) {
  Json tools = checked_tools(body);
  if (is_there(body, "tool_choice") && body.at("tool_choice") == "none") return nullptr;
  return tools;
}

}  // namespace switchyard::chat
