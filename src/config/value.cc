#include "config/value.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "config/config_file.h"
#include "core/error.h"
#include "switchyard/setting_error.h"

namespace switchyard {
namespace {

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

bool means_none(const nlohmann::json& value) {
  if (value.is_null()) return true;
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text == "None" || text == "none" || text == "null" || text == "~" || text.empty();
}

// Removes Python's digit grouping: underscores between two digits.
std::optional<std::string> without_grouping(const std::string& text) {
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto is_digit = [&](std::size_t at) {
      return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  if (!digits.empty() && digits[0] == '+') digits.erase(0, 1);
  return digits;
}

template <typename Number>
std::optional<Number> parsed(const std::string& digits) {
  Number number{};
  const char* end = digits.data() + digits.size();
  const auto [stop, problem] = std::from_chars(digits.data(), end, number);
  if (problem != std::errc{} || stop != end || digits.empty()) return std::nullopt;
  return number;
}

std::optional<double> as_float(const nlohmann::json& value) {
  std::optional<double> number;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) {
    const auto digits = without_grouping(trimmed(value.get_ref<const std::string&>()));
    if (digits) number = parsed<double>(*digits);
  }
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<std::int64_t> as_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string()) {
    const auto digits = without_grouping(trimmed(value.get_ref<const std::string&>()));
    if (digits) {
      if (const auto number = parsed<std::int64_t>(*digits)) return number;
    }
  }
  // 1e5 and 40.0 are whole numbers too, as far as a double is exact.
  const auto number = as_float(value);
  if (number && std::floor(*number) == *number && std::abs(*number) <= 9007199254740992.0) {
    return static_cast<std::int64_t>(*number);
  }
  return std::nullopt;
}

std::optional<bool> as_boolean(const nlohmann::json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (const auto number = as_integer(value)) {
    if (*number == 0 || *number == 1) return *number == 1;
    return std::nullopt;
  }
  if (!value.is_string()) return std::nullopt;
  const std::string text = lower_case(trimmed(value.get_ref<const std::string&>()));
  if (text == "true" || text == "yes" || text == "on") return true;
  if (text == "false" || text == "no" || text == "off") return false;
  return std::nullopt;
}

std::optional<std::string> as_text(const nlohmann::json& value) {
  if (value.is_string()) return trimmed(value.get_ref<const std::string&>());
  if (value.is_number() || value.is_boolean()) return value_text(value);
  return std::nullopt;
}

// The elements of a list; `a,b` without brackets is one too.
std::optional<std::vector<nlohmann::json>> elements(const nlohmann::json& value) {
  if (value.is_array()) return value.get<std::vector<nlohmann::json>>();
  std::vector<nlohmann::json> items;
  if (means_none(value)) return items;
  if (value.is_number()) return std::vector<nlohmann::json>{value};
  if (!value.is_string()) return std::nullopt;
  std::string_view rest = value.get_ref<const std::string&>();
  while (true) {
    const auto comma = rest.find(',');
    items.emplace_back(trimmed(rest.substr(0, comma)));
    if (comma == std::string_view::npos) return items;
    rest.remove_prefix(comma + 1);
  }
}

nlohmann::json list_value(const KeyDeclaration& key, const nlohmann::json& value) {
  const auto items = elements(value);
  if (!items) return nlohmann::json::value_t::discarded;
  nlohmann::json list = nlohmann::json::array();
  for (const nlohmann::json& item : *items) {
    if (key.type == KeyType::integer_list) {
      const auto number = as_integer(item);
      if (!number) return nlohmann::json::value_t::discarded;
      list.push_back(*number);
    } else if (key.type == KeyType::number_list) {
      const auto number = as_float(item);
      if (!number) return nlohmann::json::value_t::discarded;
      list.push_back(*number);
    } else {
      const auto text = as_text(item);
      if (!text) return nlohmann::json::value_t::discarded;
      list.push_back(*text);
    }
  }
  return list;
}

template <typename Value>
nlohmann::json or_discarded(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nlohmann::json::value_t::discarded);
}

// A discarded value says that it does not have the declaration's type.
nlohmann::json converted(const KeyDeclaration& key, const nlohmann::json& value) {
  if (key.optional && means_none(value)) return nullptr;
  // A key that is not built or changes nothing is off by default, so None means its default.
  const bool is_number = key.type == KeyType::integer || key.type == KeyType::floating;
  if (key.status != KeyStatus::active && (is_number || key.type == KeyType::boolean) && means_none(value))
    return key.default_value;
  switch (key.type) {
    case KeyType::boolean:
      return or_discarded(as_boolean(value));
    case KeyType::integer:
      return or_discarded(as_integer(value));
    case KeyType::floating:
      return or_discarded(as_float(value));
    case KeyType::text: {
      if (key.verbatim && value.is_string()) return value;
      // Many text keys mean "not used" when empty, and users write that as None.
      if (value.is_null() || value == "None" || value == "null" || value == "~") return "";
      return or_discarded(as_text(value));
    }
    case KeyType::text_list:
    case KeyType::integer_list:
    case KeyType::number_list:
      return list_value(key, value);
    case KeyType::structure: {
      if (means_none(value) || (value.is_structured() && value.empty()))
        return key.status == KeyStatus::active ? nlohmann::json::array() : key.default_value;
      // A key that is inert, or refused with its own reason, may have a value of any form.
      return value.is_structured() || key.status != KeyStatus::active
                 ? value
                 : nlohmann::json(nlohmann::json::value_t::discarded);
    }
  }
  CHECK(false, "type {} of key {}", static_cast<int>(key.type), key.name);
  return nullptr;
}

bool in_range(const KeyCheck& check, double number) {
  if (check.also && number == *check.also) return true;
  if (check.minimum && (number < *check.minimum || (check.minimum_excluded && number == *check.minimum)))
    return false;
  return !check.maximum || number <= *check.maximum;
}

bool satisfies(const KeyCheck& check, const nlohmann::json& value) {
  if (value.is_number()) return in_range(check, value.get<double>());
  if (!value.is_string() || check.choices.empty()) return true;
  return std::find(check.choices.begin(), check.choices.end(), value.get_ref<const std::string&>()) !=
         check.choices.end();
}

// The text for an error message: short enough for one line.
std::string shown(const nlohmann::json& value) {
  std::string text = value_text(value);
  if (text.empty()) return "nothing";
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' '; }, ' ');
  return text.size() > 120 ? text.substr(0, 120) + "…" : text;
}

}  // namespace

nlohmann::json untyped_value(std::string_view key, const std::string& text) {
  const std::string value = trimmed(text);
  const bool quoted = value.size() >= 2 && (value[0] == '\'' || value[0] == '"') && value.back() == value[0];
  if (quoted) return value.substr(1, value.size() - 2);
  if (!value.starts_with("[") && !value.starts_with("{")) return value;
  try {
    return yaml_to_json(YAML::Load(value));
  } catch (const YAML::Exception& problem) {
    fail_usage("[config] {}: expected a list such as ['a', 'b'], got {} ({})", key, shown(value),
               problem.msg);
  }
}

nlohmann::json typed_value(const KeyDeclaration& key, const nlohmann::json& value, std::string_view source) {
  if (key.status == KeyStatus::derived) {
    if (!means_none(value) && !(value.is_structured() && value.empty()))
      fail_usage("[config] {}={} is {} ({})", key.name, shown(value), key.help, source);
    return nullptr;
  }
  nlohmann::json typed = converted(key, value);
  const KeyCheck& check = key.check;
  if (typed.is_string() && std::find(check.planned.begin(), check.planned.end(),
                                     typed.get_ref<const std::string&>()) != check.planned.end()) {
    fail_usage("[config] {}={} is planned, not built yet: expected {} ({})", key.name, shown(typed),
               expected_value(key), source);
  }
  if (typed.is_discarded() || !satisfies(check, typed)) {
    const std::string expected = expected_value(key), given = shown(value);
    throw SettingError(
        fmt::format("[config] {}: expected {}, got {} ({})", key.name, expected, given, source), key.name,
        given, expected);
  }
  return typed;
}

std::string value_text(const nlohmann::json& value) {
  if (value.is_null()) return "None";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text = "[";
    for (std::size_t i = 0; i < value.size(); ++i) text += (i == 0 ? "" : ", ") + value_text(value[i]);
    return text + "]";
  }
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace switchyard
