// What the kernel tests share: instruction sets to loop over, and comparisons of arrays.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/registry/isa.h"
#include "kernels/testing/poisoned_array.h"

namespace switchyard::kernel_test {

using Array = PoisonedArray;

inline std::vector<Isa> every_isa() {
  std::vector<Isa> result;
  for (int i = 0; i <= static_cast<int>(machine_isa()); ++i) result.push_back(static_cast<Isa>(i));
  return result;
}

// |found - expected| <= relative·|expected| + absolute everywhere, no NaN, and intact guards.
inline ::testing::AssertionResult near(const Array& found, const Array& expected, float relative,
                                       float absolute) {
  if (!found.guards_intact()) return ::testing::AssertionFailure() << "wrote outside its output";
  if (found.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  const auto at = first_difference(found, expected, {relative, absolute});
  if (!at) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "element " << *at << " is " << found.at(*at) << ", not " << expected.at(*at);
}

// Equal values (a zero of either sign is zero, NaN equals nothing) and intact guards.
inline ::testing::AssertionResult same(const Array& found, const Array& expected) {
  return near(found, expected, 0, 0);
}

}  // namespace switchyard::kernel_test
