#include "chat/template_repairs.h"

#include <fmt/format.h>

#include <array>
#include <map>
#include <string>

namespace switchyard::chat {
namespace {

void fill(Json& object, const char* key, Json value) {
  if (!object.contains(key) || object.at(key).is_null()) object[key] = std::move(value);
}

template <typename Change>
void for_each_function(Json& given, const Change& change) {
  if (!given.contains("tools") || !given.at("tools").is_array()) return;
  for (Json& tool : given.at("tools")) change(tool.at("function"));
}

void fill_functions(Json& given) {
  for_each_function(given, [](Json& function) {
    fill(function, "description", "");
    fill(function, "parameters", Json{{"type", "object"}, {"properties", Json::object()}});
  });
}

const char* type_of(const Json& value) {
  if (value.is_boolean()) return "boolean";
  if (value.is_number_integer()) return "integer";
  if (value.is_number()) return "number";
  if (value.is_array()) return "array";
  return value.is_object() ? "object" : "string";
}

// The type of a schema that has none: what its values or its branches show.
std::string shown_type(const Json& schema) {
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    if (!schema.contains(key) || !schema.at(key).is_array()) continue;
    for (const Json& branch : schema.at(key)) {
      if (branch.is_object() && branch.contains("type") && branch.at("type").is_string() &&
          branch.at("type") != "null")
        return branch.at("type").get<std::string>();
    }
  }
  if (schema.contains("const")) return type_of(schema.at("const"));
  if (schema.contains("enum") && schema.at("enum").is_array() && !schema.at("enum").empty())
    return type_of(schema.at("enum").front());
  return schema.contains("properties") ? "object" : schema.contains("items") ? "array" : "string";
}

template <typename Change>
void for_each_schema(Json& schema, const Change& change) {
  if (schema.is_boolean()) schema = Json::object();
  if (!schema.is_object()) return;
  change(schema);
  if (schema.contains("properties") && schema.at("properties").is_object()) {
    for (auto& [key, property] : schema.at("properties").items()) for_each_schema(property, change);
  }
  if (schema.contains("items")) for_each_schema(schema.at("items"), change);
}

void fill_schemas(Json& given) {
  for_each_function(given, [](Json& function) {
    Json& parameters = function.at("parameters");
    fill(parameters, "type", "object");
    fill(parameters, "properties", Json::object());
    fill(parameters, "required", Json::array());
    if (!parameters.at("properties").is_object()) return;
    for (auto& [key, property] : parameters.at("properties").items()) {
      for_each_schema(property, [](Json& schema) {
        fill(schema, "description", "");
        fill(schema, "type", shown_type(schema));
      });
    }
  });
}

// For templates that take a type to be one word.
void take_one_type(Json& given) {
  for_each_function(given, [](Json& function) {
    for_each_schema(function.at("parameters"), [](Json& schema) {
      if (!schema.contains("type") || !schema.at("type").is_array()) return;
      Json first = "null";
      for (const Json& type : schema.at("type")) {
        if (first == "null") first = type;
      }
      schema["type"] = first;
    });
  });
}

// Fills in ids and types of calls, and names of their results. Some templates take ids of nine letters or digits only.
void fill_calls(Json& given) {
  struct Call {
    std::string id, name;
  };
  std::map<std::string, Call> calls;  // by the ids that were sent
  std::vector<Call> open;             // without a result so far
  std::size_t count = 0;
  for (Json& message : given.at("messages")) {
    if (message.contains("tool_calls") && message.at("tool_calls").is_array()) {
      open.clear();
      for (Json& call : message.at("tool_calls")) {
        const Call made{fmt::format("call{:05}", ++count), call.at("function").at("name").get<std::string>()};
        if (call.contains("id") && call.at("id").is_string()) calls[call.at("id").get<std::string>()] = made;
        open.push_back(made);
        call["id"] = made.id;
        fill(call, "type", "function");
      }
    }
    if (message.at("role") != "tool") continue;
    const auto sent = message.find("tool_call_id");
    const bool known = sent != message.end() && sent->is_string() && calls.contains(sent->get<std::string>());
    if (!known && open.empty()) continue;
    const Call call = known ? calls.at(sent->get<std::string>()) : open.front();
    if (!open.empty()) open.erase(open.begin());
    message["tool_call_id"] = call.id;
    fill(message, "name", call.name);
  }
}

constexpr std::array<Repair, 4> kRepairs{fill_functions, fill_schemas, take_one_type, fill_calls};

}  // namespace

std::span<const Repair> template_repairs() {
  return kRepairs;
}

}  // namespace switchyard::chat
