#include "selftest/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace switchyard::selftest {
namespace {

constexpr double kSmallest = 1e-6;  // magnitudes below count as this one

double largest_magnitude(const PoisonedArray& x) {
  double largest = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(x.value(i))) largest = std::max(largest, std::abs(x.value(i)));
  }
  return largest;
}

double largest_difference(const PoisonedArray& x, const PoisonedArray& y) {
  double largest = 0;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (x.value(i) != y.value(i)) take_larger(std::abs(x.value(i) - y.value(i)), largest);
  }
  return largest;
}

}  // namespace

void take_larger(double value, double& largest) {
  if (!std::isnan(largest) && !(value <= largest)) largest = value;
}

Comparison compare(const Output& output, const PoisonedArray& found, const PoisonedArray& expected,
                   bool in_tiles) {
  const double largest = largest_magnitude(expected);
  Comparison result;
  if (is_float(expected.dtype())) result.max_abs = largest_difference(found, expected);
  result.max_rel = result.max_abs / std::max(largest, kSmallest);
  const Bound bound{output.bound.relative, output.bound.absolute + output.of_largest * largest};
  std::span<const double> rounding;
  if (in_tiles) rounding = output.tile_rounding;
  if (!expected.guards_intact()) {
    result.failure = fmt::format("the reference wrote outside {}", output.name);
  } else if (!found.guards_intact()) {
    result.failure = fmt::format("wrote outside {}", output.name);
  } else if (const auto at = first_difference(found, expected, bound, rounding)) {
    result.failure =
        fmt::format("{}[{}] is {}, expected {}", output.name, *at, found.value(*at), expected.value(*at));
  }
  return result;
}

}  // namespace switchyard::selftest
