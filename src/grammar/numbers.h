// JSON numbers within bounds, as grammar expressions over their digits.
#pragma once

#include <cstdint>
#include <optional>

#include "grammar/rules.h"

namespace switchyard::grammar {

struct Bounds {
  std::optional<std::int64_t> min, max;
  bool above_min = false, below_max = false;  // the bound itself is out
};

// Any integer (number), of which JSON's readers make a finite number.
Expression any_integer();
Expression any_number();
Expression integer_between(const Bounds& bounds);
// Without exponents, and with at most nine digits of a fraction, so that no rounding crosses a bound.
Expression number_between(const Bounds& bounds);

}  // namespace switchyard::grammar
