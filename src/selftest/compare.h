// Compares one output with that of the reference implementation.
#pragma once

#include <string>

#include "kernels/testing/cases.h"

namespace switchyard::selftest {

struct Comparison {
  double max_abs = 0;   // largest |found - expected|; 0 for integers
  double max_rel = 0;   // max_abs over the largest expected magnitude, at least 1e-6
  std::string failure;  // the error in one line; empty: none
};

// Fails for an element outside its bound, for NaN, and for an overwritten guard. `in_tiles`: an element's
// bound includes its tile_rounding.
Comparison compare(const Output& output, const PoisonedArray& found, const PoisonedArray& expected,
                   bool in_tiles);

// Replaces `largest` by `value` when that is larger; NaN counts as the largest.
void take_larger(double value, double& largest);

}  // namespace switchyard::selftest
