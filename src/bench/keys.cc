#include "bench/keys.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "config/declaration.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace

Keys::Keys(std::string case_name, std::vector<Key> declared, std::span<const std::string> settings,
           bool with_config)
    : case_name_(std::move(case_name)), declared_(std::move(declared)) {
  std::vector<std::string> names;
  for (const Key& key : declared_) names.push_back(key.name);
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    if (!known && with_config) {
      config_settings_.push_back(setting);
      continue;
    }
    if (equals == std::string::npos) fail_usage("[bench] expected key=value after the case, got {}", setting);
    if (!known)
      fail_usage("[bench] {} has no key {}{}; all are {}", case_name_, name, nearest_hint(name, names),
                 joined(names));
    given_[name] = setting.substr(equals + 1);
  }
}

bool Keys::any_given(std::initializer_list<const char*> names) const {
  return std::any_of(names.begin(), names.end(), [&](const char* name) { return given(name); });
}

const std::string& Keys::text(const std::string& name) const {
  if (const auto found = given_.find(name); found != given_.end()) return found->second;
  const auto key =
      std::find_if(declared_.begin(), declared_.end(), [&](const Key& k) { return k.name == name; });
  CHECK(key != declared_.end(), "{} does not declare {}", case_name_, name);
  return key->fallback;
}

std::int64_t Keys::number(const std::string& name, const std::string& value, std::int64_t least) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::int64_t result = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (status != std::errc() || end != value.data() + value.size() || result < least || result > kMost)
    fail_usage("[bench] {} {}={}: expected a whole number from {} to {}", case_name_, name, value, least,
               kMost);
  return result;
}

std::int64_t Keys::integer(const std::string& name, std::int64_t least) const {
  return number(name, text(name), least);
}

std::vector<std::int64_t> Keys::integers(const std::string& name, std::int64_t least) const {
  std::vector<std::int64_t> result;
  for (const auto& part : split(text(name))) result.push_back(number(name, part, least));
  return result;
}

std::vector<std::string> Keys::words(const std::string& name, const std::vector<std::string>& allowed) const {
  if (text(name) == "all") return allowed;
  const auto parts = split(text(name));
  for (const auto& part : parts) {
    if (std::find(allowed.begin(), allowed.end(), part) == allowed.end())
      fail_usage("[bench] {} {}={}: expected all, or some of {} with commas between", case_name_, name,
                 text(name), joined(allowed));
  }
  return parts;
}

}  // namespace switchyard::bench
