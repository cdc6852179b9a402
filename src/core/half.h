// float16 (IEEE binary16), which files hold and nothing computes in.
#pragma once

#include <bit>
#include <cstdint>

namespace switchyard {

// Exact; a NaN keeps its payload.
inline float half_to_float(std::uint16_t half) {
  const auto sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: a multiple of 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

}  // namespace switchyard
