// One output against the scalar twin's.
#pragma once

#include <string>

#include "kernels/testing/cases.h"

namespace switchyard::selftest {

struct Comparison {
  double max_abs = 0;   // largest |found - expected|; 0 of integers
  double max_rel = 0;   // that over the largest expected magnitude, at least 1e-6
  std::string failure;  // what is wrong, in a line; empty: nothing
};

// Fails for an element out of its bound, for NaN, and where a guard was overwritten. `in_tiles`: the bound of
// an element has its tile_rounding, too.
Comparison compare(const Output& output, const PoisonedArray& found, const PoisonedArray& expected,
                   bool in_tiles);

// Of two errors; NaN is the largest.
void take_larger(double value, double& largest);

}  // namespace switchyard::selftest
