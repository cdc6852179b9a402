// Names that differ in numbers only, as one: "layers.{0-31}.moe.experts.{0-7}.wo".
#pragma once

#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

struct FoldedName {
  std::string name;
  std::vector<std::size_t> members;  // indices into the names given, in their order
};

// Folds names that are equal but for whole parts of digits between dots and that have equal `kinds` (one of
// each name: its dtype and shape, say), in order of first appearance. Only full sets are folded: a group
// that lacks a combination of its numbers stays apart by its first numbers until its pieces are full.
std::vector<FoldedName> fold_names(const std::vector<std::string>& names,
                                   const std::vector<std::string>& kinds);

}  // namespace switchyard
