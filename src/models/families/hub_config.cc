#include "models/families/hub_config.h"

#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Formats a value for a message: JSON, so without control characters, and not too long.
std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 100 ? text : text.substr(0, 100) + "...";
}

}  // namespace

HubConfig::HubConfig(const json& values, std::string part) : values_(values), part_(std::move(part)) {
  if (!values.is_object()) fail_usage("[hub config] {}expected an object, got {}", part_, shown(values));
}

std::int64_t HubConfig::integer(const char* key) const {
  require(key);
  const json& value = values_[key];
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > kMost) ||
      value.get<std::int64_t>() < 0) {
    wrong(key, "a whole number from 0 to 2^40");
  }
  return value.get<std::int64_t>();
}

std::int64_t HubConfig::positive(const char* key) const {
  const std::int64_t value = integer(key);
  if (value == 0) wrong(key, "a positive whole number");
  return value;
}

double HubConfig::number(const char* key) const {
  require(key);
  if (!values_[key].is_number()) wrong(key, "a number");
  return values_[key].get<double>();
}

bool HubConfig::flag(const char* key, bool absent) const {
  if (!has(key)) return absent;
  if (!values_[key].is_boolean()) wrong(key, "true or false");
  return values_[key].get<bool>();
}

std::string HubConfig::text(const char* key, const char* absent) const {
  if (!has(key)) return absent;
  if (!values_[key].is_string()) wrong(key, "a string");
  return values_[key].get<std::string>();
}

void HubConfig::wrong(const char* key, std::string_view expected) const {
  fail_usage("[hub config] {}{}={}: expected {}", part_, key, shown(values_[key]), expected);
}

void HubConfig::require(const char* key) const {
  if (!has(key)) fail_usage("[hub config] {}{} is missing", part_, key);
}

}  // namespace switchyard
