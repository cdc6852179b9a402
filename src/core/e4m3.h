// e4m3 of the OCP 8-bit Floating Point Specification, a type of files, not of computation: a sign, 4 bits of
// exponent with bias 7, 3 bits of mantissa; no infinity, and all ones are NaN.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace switchyard {

constexpr bool is_e4m3_nan(std::uint8_t bits) {
  return (bits & 0x7f) == 0x7f;
}

// The conversion is exact.
constexpr float e4m3_to_float(std::uint8_t bits) {
  const std::uint32_t exponent = (bits >> 3) & 15u, mantissa = bits & 7u;
  float value = exponent == 0 ? static_cast<float>(mantissa) * 0x1p-9f
                              : std::bit_cast<float>((exponent + 120u) << 23 | mantissa << 20);
  if (is_e4m3_nan(bits)) value = std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80u) != 0 ? -value : value;
}

}  // namespace switchyard
