#include "chat/formats/tool_types.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <utility>

#include "chat/formats/answer.h"

namespace switchyard::chat::formats {
namespace {

constexpr int kSchemas = 200;  // looked at for one parameter: references may point to what holds them

const Json* member(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

unsigned bit_of_name(const Json& name) {
  static constexpr std::array<std::pair<std::string_view, JsonTypes::Bit>, 7> kNames{
      {{"string", JsonTypes::text},
       {"integer", JsonTypes::integer},
       {"number", JsonTypes::number},
       {"boolean", JsonTypes::boolean},
       {"null", JsonTypes::null},
       {"array", JsonTypes::list},
       {"object", JsonTypes::object}}};
  if (!name.is_string()) return 0;
  for (const auto& [text, bit] : kNames)
    if (name.get_ref<const std::string&>() == text) return bit;
  return 0;
}

unsigned bit_of_value(const Json& value) {
  if (value.is_string()) return JsonTypes::text;
  if (value.is_number_integer()) return JsonTypes::integer;
  if (value.is_number()) return JsonTypes::number;
  if (value.is_boolean()) return JsonTypes::boolean;
  if (value.is_null()) return JsonTypes::null;
  return value.is_array() ? JsonTypes::list : JsonTypes::object;
}

// Follows a reference of the form #/a/b. Null for any other, and where it points to nothing.
const Json* referenced(const Json& root, const std::string& path) {
  if (!path.starts_with("#")) return nullptr;
  if (path == "#") return &root;
  try {
    return &root.at(Json::json_pointer(path.substr(1)));
  } catch (const Json::exception&) {
    return nullptr;
  }
}

unsigned bits_of_type(const Json& schema, const Json& type) {
  unsigned bits = 0;
  if (type.is_array()) {
    for (const Json& one : type) bits |= bit_of_name(one);
  } else {
    bits = bit_of_name(type);
  }
  if (bits & JsonTypes::number) bits |= JsonTypes::integer;
  const Json* nullable = member(schema, "nullable");  // OpenAPI's
  return nullable != nullptr && *nullable == true ? bits | JsonTypes::null : bits;
}

unsigned bits_of_schema(const Json& schema, const Json& root, int& left) {
  if (--left < 0) return 0;
  unsigned bits = 0;  // none: nothing is known yet
  const auto narrow = [&](unsigned to) {
    if (to != 0) bits = bits == 0 ? to : bits & to;
  };
  if (const Json* type = member(schema, "type")) narrow(bits_of_type(schema, *type));
  if (const Json* value = member(schema, "const")) narrow(bit_of_value(*value));
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    unsigned all = 0;
    for (const Json& value : *values) all |= bit_of_value(value);
    narrow(all);
  }
  if (const Json* path = member(schema, "$ref"); path != nullptr && path->is_string())
    if (const Json* target = referenced(root, path->get_ref<const std::string&>()))
      narrow(bits_of_schema(*target, root, left));
  if (const Json* parts = member(schema, "allOf"); parts != nullptr && parts->is_array())
    for (const Json& part : *parts) narrow(bits_of_schema(part, root, left));
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* parts = member(schema, key);
    if (parts == nullptr || !parts->is_array()) continue;
    unsigned any = 0;
    for (const Json& part : *parts) any |= bits_of_schema(part, root, left);
    narrow(any);
  }
  if (bits == 0 && member(schema, "properties") != nullptr) return JsonTypes::object;
  if (bits == 0 && member(schema, "items") != nullptr) return JsonTypes::list;
  return bits;
}

bool is_whole_number(std::string_view text) {
  if (text.find_first_of(".eE") == std::string_view::npos) return true;
  const Json value = Json::parse(text, nullptr, false);
  return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
}

// Returns whether a text, which is JSON, is of one of the types other than text.
bool is_of_type(std::string_view text, JsonTypes types) {
  switch (text.front()) {
    case '{':
      return types.has(JsonTypes::object);
    case '[':
      return types.has(JsonTypes::list);
    case 't':
    case 'f':
      return types.has(JsonTypes::boolean);
    case 'n':
      return types.has(JsonTypes::null);
    default:
      break;
  }
  if (text.front() != '-' && (text.front() < '0' || text.front() > '9')) return false;
  return types.has(JsonTypes::number) || (types.has(JsonTypes::integer) && is_whole_number(text));
}

}  // namespace

JsonTypes types_of_schema(const Json& schema, const Json& root) {
  int left = kSchemas;
  return {bits_of_schema(schema, root, left)};
}

void append_escaped(std::string& json, std::string_view piece) {
  for (char c : piece) {
    switch (c) {
      case '"':
        json += "\\\"";
        break;
      case '\\':
        json += "\\\\";
        break;
      case '\n':
        json += "\\n";
        break;
      case '\r':
        json += "\\r";
        break;
      case '\t':
        json += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20)
          json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
          json += c;
    }
  }
}

std::string json_text(std::string_view text) {
  std::string json = "\"";
  append_escaped(json, text);
  return json + '"';
}

std::string json_of_value(std::string_view text, JsonTypes types) {
  if (types.is_text()) return json_text(text);
  std::string_view value = text;
  while (!value.empty() && is_space(value.front())) value.remove_prefix(1);
  while (!value.empty() && is_space(value.back())) value.remove_suffix(1);
  if (types.has(JsonTypes::boolean) && (value == "True" || value == "False"))
    return value == "True" ? "true" : "false";
  if (types.has(JsonTypes::null) && value == "None") return "null";
  if (!value.empty() && is_of_type(value, types) && Json::accept(value)) return std::string(value);
  return json_text(text);
}

const Json* function_of_tool(const Json& tool) {
  if (const Json* function = member(tool, "function")) return function->is_object() ? function : nullptr;
  return tool.is_object() ? &tool : nullptr;
}

ToolTypes::ToolTypes(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = function_of_tool(tool);
    const Json* name = function == nullptr ? nullptr : member(*function, "name");
    if (name == nullptr || !name->is_string()) continue;
    auto& types = types_[name->get<std::string>()];
    const Json* parameters = member(*function, "parameters");
    const Json* properties = parameters == nullptr ? nullptr : member(*parameters, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, schema] : properties->items()) types[key] = types_of_schema(schema, *parameters);
  }
}

std::vector<std::string> ToolTypes::names() const {
  std::vector<std::string> names;
  for (const auto& [name, types] : types_) names.push_back(name);
  return names;
}

JsonTypes ToolTypes::type(const std::string& tool, const std::string& parameter) const {
  const auto found = types_.find(tool);
  if (found == types_.end()) return {};
  const auto type = found->second.find(parameter);
  return type == found->second.end() ? JsonTypes{} : type->second;
}

}  // namespace switchyard::chat::formats
