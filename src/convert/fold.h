// Folds names that differ only in numbers into one: "layers.{0-31}.moe.experts.{0-7}.wo".
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

struct FoldedName {
  std::string name;
  std::vector<std::size_t> members;  // indices into the given names, in order
};

// Folds names that are equal except for dot-separated parts that are all digits, and whose `kinds` (one for
// each name, such as its dtype and shape) are equal; ordered by first appearance. Only complete sets fold: a
// group without some combination of its numbers is split by its first number until its pieces are complete.
std::vector<FoldedName> fold_names(const std::vector<std::string>& names,
                                   const std::vector<std::string>& kinds);

}  // namespace switchyard
