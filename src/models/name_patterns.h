// Parameters chosen by regular expressions, as the reference chooses them.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace switchyard {

class NamePatterns {
 public:
  NamePatterns() = default;
  // Expressions in the syntax of ECMAScript, lookahead included. Error(usage) that names `key` for one that
  // is none.
  NamePatterns(const std::string& key, const std::vector<std::string>& patterns);

  bool empty() const { return expressions_.empty(); }
  // Whether one of them is found anywhere in the name. Layers are parts of names ("layers.2.moe.gate"), which
  // an expression may also write with slashes ("moe/gate").
  bool find_in(const std::string& name) const;

 private:
  std::vector<std::regex> expressions_;
};

}  // namespace switchyard
