#include "gguf/metadata.h"

#include <cmath>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {

using nlohmann::json;

const json& GgufMetadata::at(std::string_view key) const {
  const auto found = file_.metadata().find(full(key));
  if (found == file_.metadata().end())
    fail_usage("[gguf] {}: the metadata has no {}", file_.path(), in_quotes(full(key)));
  read_.emplace(key);
  return found->second;
}

// Some writers give a list with one number per layer: a list of equal values counts as that value.
const json& GgufMetadata::one(std::string_view key) const {
  const json& value = at(key);
  if (!value.is_array()) return value;
  for (const json& other : value) {
    if (other != value[0]) wrong(key, "the same for every layer");
  }
  return value.empty() ? value : value[0];
}

std::int64_t GgufMetadata::as_integer(std::string_view key, const json& value) const {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kMost}) &&
                    value.get<std::int64_t>() >= 0;
  if (!fits) wrong(key, "a whole number from 0 to 2^40");
  return value.get<std::int64_t>();
}

double GgufMetadata::as_number(std::string_view key, const json& value) const {
  if (!value.is_number() || !std::isfinite(value.get<float>())) wrong(key, "a finite number");
  return std::stod(fmt::format("{}", value.get<float>()));
}

std::int64_t GgufMetadata::integer(std::string_view key) const {
  return as_integer(key, one(key));
}

double GgufMetadata::number(std::string_view key) const {
  return as_number(key, one(key));
}

// The value of layer `i`: one of a list, or the value for all.
const json& GgufMetadata::of_layer(std::string_view key, std::size_t i) const {
  const json& value = at(key);
  if (!value.is_array()) return value;
  if (value.size() <= i) wrong(key, fmt::format("a number for layer {}", i));
  return value[i];
}

std::vector<std::int64_t> GgufMetadata::integers(std::string_view key, std::int64_t count) const {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    numbers.push_back(as_integer(key, of_layer(key, i)));
  return numbers;
}

std::vector<double> GgufMetadata::numbers(std::string_view key, std::int64_t count) const {
  std::vector<double> numbers;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
    numbers.push_back(as_number(key, of_layer(key, i)));
  return numbers;
}

bool GgufMetadata::flag(std::string_view key, bool absent) const {
  if (!has(key)) return absent;
  const json& value = one(key);
  if (!value.is_boolean()) wrong(key, "true or false");
  return value.get<bool>();
}

std::string GgufMetadata::text(std::string_view key) const {
  if (!at(key).is_string()) wrong(key, "a string");
  return at(key).get<std::string>();
}

const json& GgufMetadata::list(std::string_view key) const {
  if (!at(key).is_array()) wrong(key, "a list");
  return at(key);
}

std::vector<bool> GgufMetadata::flags(std::string_view key, std::int64_t count) const {
  const json& values = list(key);
  if (std::ssize(values) < count) wrong(key, fmt::format("a flag for each of {} layers", count));
  std::vector<bool> flags;
  for (std::int64_t i = 0; i < count; ++i) {
    const json& flag = values[static_cast<std::size_t>(i)];
    if (!flag.is_boolean() && flag != 0 && flag != 1) wrong(key, "flags");
    flags.push_back(flag.is_boolean() ? flag.get<bool>() : flag == 1);
  }
  return flags;
}

std::vector<std::string> GgufMetadata::unread() const {
  std::vector<std::string> keys;
  const std::string begin = full("");
  for (const auto& [key, value] : file_.metadata()) {
    if (key.starts_with(begin) && !read_.contains(std::string_view(key).substr(begin.size())))
      keys.push_back(key.substr(begin.size()));
  }
  return keys;
}

std::optional<std::size_t> GgufMetadata::id(std::string_view key, std::size_t ids) const {
  if (!has(key)) return {};
  const json& value = at(key);
  if (!value.is_number_unsigned() || value.get<std::size_t>() >= ids)
    wrong(key, fmt::format("one of {} ids", ids));
  return value.get<std::size_t>();
}

void GgufMetadata::wrong(std::string_view key, std::string_view expected) const {
  std::string shown = at(key).dump(-1, ' ', false, json::error_handler_t::replace);
  if (shown.size() > 100) shown = shown.substr(0, 100) + "...";
  fail_usage("[gguf] {}: {}={}: expected {}", file_.path(), full(key), shown, expected);
}

}  // namespace switchyard
