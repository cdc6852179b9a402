#include "tokenizer/json_reader.h"

#include <fmt/format.h>

#include "core/error.h"

namespace switchyard {

JsonReader::JsonReader(const nlohmann::json& value, std::string name)
    : value_(&value), name_(std::move(name)) {
  if (!value.is_object()) fail("expected an object");
}
bool JsonReader::has(const char* key) const {
  return value_->contains(key) && !value_->at(key).is_null();
}
const nlohmann::json& JsonReader::at(const char* key) const {
  if (!has(key)) fail(fmt::format("\"{}\" is missing", key));
  return value_->at(key);
}
JsonReader JsonReader::object(const char* key) const {
  return {at(key), name_ + "." + key};
}
std::vector<JsonReader> JsonReader::list(const char* key) const {
  const nlohmann::json& values = at(key);
  if (!values.is_array()) fail(fmt::format("\"{}\" is not a list", key));
  std::vector<JsonReader> readers;
  for (const nlohmann::json& value : values) readers.emplace_back(value, name_ + "." + key);
  return readers;
}
std::string JsonReader::text(const char* key) const {
  if (!at(key).is_string()) fail(fmt::format("\"{}\" is not a string", key));
  return at(key).get<std::string>();
}
std::string JsonReader::text(const char* key, const std::string& absent) const {
  return has(key) ? text(key) : absent;
}
bool JsonReader::flag(const char* key, bool absent) const {
  if (!has(key)) return absent;
  if (!at(key).is_boolean()) fail(fmt::format("\"{}\" is not true or false", key));
  return at(key).get<bool>();
}
std::int64_t JsonReader::integer(const char* key, std::int64_t low, std::int64_t high) const {
  const nlohmann::json& value = at(key);
  const bool whole =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  if (!whole || value.get<std::int64_t>() < low || value.get<std::int64_t>() > high) {
    fail(fmt::format("\"{}\" is not a whole number from {} to {}", key, low, high));
  }
  return value.get<std::int64_t>();
}
std::int64_t JsonReader::integer(const char* key, std::int64_t low, std::int64_t high,
                                 std::int64_t absent) const {
  return has(key) ? integer(key, low, high) : absent;
}
void JsonReader::fail(const std::string& message) const {
  fail_usage("[tokenizer] {}: {}", name_, message);
}

}  // namespace switchyard
