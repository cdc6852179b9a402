#include "models/name_patterns.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {

NamePatterns::NamePatterns(const std::string& key, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    try {
      expressions_.emplace_back(pattern);
    } catch (const std::regex_error&) {
      fail_usage("[config] {}: '{}' is no regular expression", key, pattern);
    }
  }
}

bool NamePatterns::find_in(const std::string& name) const {
  std::string with_slashes = name;
  std::replace(with_slashes.begin(), with_slashes.end(), '.', '/');
  return std::any_of(expressions_.begin(), expressions_.end(), [&](const std::regex& expression) {
    return std::regex_search(name, expression) || std::regex_search(with_slashes, expression);
  });
}

}  // namespace switchyard
