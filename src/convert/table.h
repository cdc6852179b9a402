// A table of text: columns as wide as their widest cell.
#pragma once

#include <string>
#include <vector>

namespace switchyard {

class Table {
 public:
  // A column whose title begins with '>' (not shown) is aligned to the right.
  explicit Table(std::vector<std::string> titles);
  void add(std::vector<std::string> cells);  // CHECKs that there is one cell for each column
  bool empty() const { return rows_.size() == 1; }
  std::string text(const std::string& indent) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace switchyard
