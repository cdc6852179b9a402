#include "grammar/schema_node.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "grammar/formats.h"
#include "grammar/grammar.h"
#include "grammar/schema_check.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

constexpr int max_joined = 128;  // references and allOf within one place

unsigned kinds_of_type(const std::string& type) {
  if (type == "null") return kind_null;
  if (type == "boolean") return kind_boolean;
  if (type == "integer") return kind_integer;
  if (type == "number") return kind_number;
  if (type == "string") return kind_string;
  if (type == "array") return kind_array;
  return kind_object;
}

unsigned kinds_of(const Json& type) {
  if (type.is_string()) return kinds_of_type(type.get<std::string>());
  unsigned kinds = 0;
  for (const Json& one : type) kinds |= kinds_of_type(one.get<std::string>());
  return kinds;
}

template <typename T>
void lower(T& most, T to) {
  most = most < 0 ? to : std::min(most, to);
}

}  // namespace

SchemaNode::SchemaNode(const Json& root, const Json& schema) : root_(root) {
  add(schema);
}

void SchemaNode::add(const Json& schema) {
  add_at(schema, 0);
}

Json SchemaNode::take_choice() {
  Json last = std::move(choices.back());
  choices.pop_back();
  return last;
}

void SchemaNode::add_values(const Json& list) {
  if (!values) {
    values = list;
    return;
  }
  std::set<std::string> others;
  for (const Json& value : list) others.insert(canonical(value));
  Json both = Json::array();
  for (const Json& value : *values) {
    if (others.contains(canonical(value))) both.push_back(value);
  }
  values = std::move(both);
}

void SchemaNode::add_bound(const Json& value, bool is_min, bool is_out) {
  const double exact = value.get<double>();
  const bool whole = value.is_number_integer() || std::floor(exact) == exact;  // an integer fits, as checked
  if (!whole) fraction_bound = true;
  std::int64_t rounded;
  if (value.is_number_integer()) {
    rounded = value.get<std::int64_t>();
  } else {
    rounded = static_cast<std::int64_t>(is_min ? std::ceil(exact) : std::floor(exact));
  }
  const bool out = is_out && whole;
  auto& bound = is_min ? integers.min : integers.max;
  bool& is_open = is_min ? integers.above_min : integers.below_max;
  const bool tighter = !bound || (is_min ? rounded > *bound : rounded < *bound);
  if (tighter) is_open = out;
  if (bound && rounded == *bound) is_open = is_open || out;
  if (tighter) bound = rounded;
  numbers = integers;
}

void SchemaNode::add_at(const Json& schema, int depth) {
  WorkLimit::check();
  if (depth > max_joined) throw GrammarError("a schema that refers to itself without end is not kept");
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) kinds = 0;
    constrained_ = constrained_ || !schema.get<bool>();
    return;
  }
  for (const auto& entry : schema.items()) {
    const std::string& key = entry.key();
    const Json& value = entry.value();
    if (key == "$ref") {
      add_at(resolve(root_, value.get_ref<const std::string&>()), depth + 1);
      continue;
    }
    if (key == "allOf") {
      for (const Json& part : value) add_at(part, depth + 1);
      continue;
    }
    if (key == "anyOf" || key == "oneOf") {
      choices.push_back(value);
      continue;
    }
    static const std::set<std::string> asks = {"type",
                                               "enum",
                                               "const",
                                               "properties",
                                               "additionalProperties",
                                               "required",
                                               "items",
                                               "prefixItems",
                                               "minItems",
                                               "maxItems",
                                               "minLength",
                                               "maxLength",
                                               "pattern",
                                               "format",
                                               "minimum",
                                               "exclusiveMinimum",
                                               "exclusiveMaximum",
                                               "maximum"};
    if (!asks.contains(key)) continue;
    constrained_ = true;
    if (key == "type") {
      const bool nullable =
          schema.value("nullable", Json(false)) == true;  // OpenAPI 3.0: null beside the type
      kinds &= kinds_of(value) | (nullable ? kind_null : 0u);
    }
    if (key == "enum") add_values(value);
    if (key == "const") add_values(Json::array({value}));
    if (key == "required") {
      std::set<std::string> known(required.begin(), required.end());
      for (const Json& name : value) {
        if (known.insert(name.get<std::string>()).second) required.push_back(name.get<std::string>());
      }
    }
    if (key == "minItems") min_items = std::max(min_items, value.get<std::int64_t>());
    if (key == "maxItems") lower(max_items, value.get<std::int64_t>());
    if (key == "minLength") min_length = std::max(min_length, value.get<std::int64_t>());
    if (key == "maxLength") lower(max_length, value.get<std::int64_t>());
    if (key == "minimum" || key == "exclusiveMinimum") add_bound(value, true, key != "minimum");
    if (key == "maximum" || key == "exclusiveMaximum") add_bound(value, false, key != "maximum");
    if (key == "pattern" || key == "format") {
      const std::optional<std::string> pattern =
          key == "format" ? pattern_of_format(value.get<std::string>()) : value.get<std::string>();
      if (pattern && std::ranges::find(patterns, *pattern) == patterns.end()) patterns.push_back(*pattern);
    }
  }
  if (schema.contains("properties") || schema.contains("additionalProperties"))
    object_parts.push_back(schema);
  if (schema.contains("items") || schema.contains("prefixItems")) array_parts.push_back(schema);
}

namespace {

Json all_of(std::vector<Json> parts) {
  Json joined = Json::array();
  for (Json& part : parts) {
    if (part.is_boolean() && !part.get<bool>()) return false;
    const bool asks_nothing = part.is_boolean() || part.empty();
    if (!asks_nothing && std::find(joined.begin(), joined.end(), part) == joined.end())
      joined.push_back(std::move(part));
  }
  if (joined.empty()) return true;
  if (joined.size() == 1) return joined.front();
  return Json{{"allOf", std::move(joined)}};
}

}  // namespace

Json SchemaNode::joined(const std::vector<Json>& parts, const char* key) {
  std::vector<Json> found;
  for (const Json& part : parts) found.push_back(part.value(key, Json(true)));
  return all_of(std::move(found));
}

Json SchemaNode::property(const std::string& name) const {
  std::vector<Json> found;
  for (const Json& part : object_parts) {
    const auto properties = part.find("properties");
    const bool listed = properties != part.end() && properties->contains(name);
    found.push_back(listed ? properties->at(name) : part.value("additionalProperties", Json(true)));
  }
  return all_of(std::move(found));
}

Json SchemaNode::item(std::size_t index) const {
  std::vector<Json> found;
  for (const Json& part : array_parts) {
    const auto listed = part.find("prefixItems");
    const bool has = listed != part.end() && index < listed->size();
    found.push_back(has ? listed->at(index) : part.value("items", Json(true)));
  }
  return all_of(std::move(found));
}

std::size_t SchemaNode::listed_items() const {
  std::size_t most = 0;
  for (const Json& part : array_parts) {
    if (part.contains("prefixItems")) most = std::max(most, part.at("prefixItems").size());
  }
  return most;
}

std::vector<std::string> SchemaNode::names() const {
  std::vector<std::string> found;
  std::set<std::string> seen;
  for (const Json& part : object_parts) {
    if (!part.contains("properties")) continue;
    for (const auto& entry : part.at("properties").items()) {
      if (seen.insert(entry.key()).second) found.push_back(entry.key());
    }
  }
  for (const std::string& name : required) {
    if (seen.insert(name).second) found.push_back(name);
  }
  return found;
}

}  // namespace switchyard::grammar
