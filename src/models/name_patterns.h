// Selects parameters by regular expressions, as MaxText does.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace switchyard {

class NamePatterns {
 public:
  NamePatterns() = default;
  // Expressions in ECMAScript syntax, lookahead included.
  // Error(usage) that names `key` for an invalid expression.
  NamePatterns(const std::string& key, const std::vector<std::string>& patterns);

  bool empty() const { return expressions_.empty(); }
  // True when an expression matches anywhere in the name. Layers are parts of names ("layers.2.moe.gate"). An
  // expression may also use slashes ("moe/gate").
  bool find_in(const std::string& name) const;

 private:
  std::vector<std::regex> expressions_;
};

}  // namespace switchyard
