// float16 (IEEE binary16), a type of files, not of computation.
#pragma once

#include <bit>
#include <cstdint>

namespace switchyard {

// The conversion is exact; a NaN keeps its payload.
constexpr float half_to_float(std::uint16_t half) {
  const auto sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: a multiple of 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// Rounds to nearest, ties to even; values beyond the largest half become infinity. A NaN stays a NaN.
constexpr std::uint16_t float_to_half(float value) {
  const auto word = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
  const std::uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // below the smallest normal half: a multiple of 2^-24
    // The sum's last bit is 2^-24, and float32 addition rounds to it as wanted.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(sum) - 0x3f000000u));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1u;
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xfffu + odd;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

}  // namespace switchyard
