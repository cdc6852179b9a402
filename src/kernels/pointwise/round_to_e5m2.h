// Rows rounded to float8_e5m2 (sign, 5 bits of exponent, 2 of mantissa; OCP 8-bit Floating Point
// Specification) and back: what a row is after it was sent in 8 bits.
#pragma once

#include <bit>
#include <cstdint>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

constexpr float kLargestE5m2 = 57344;

// The nearest number of e5m2, to even among two; beyond the largest one, that. NaN stays NaN.
constexpr float nearest_e5m2(float x) {
  if (x > kLargestE5m2) return kLargestE5m2;
  if (x < -kLargestE5m2) return -kLargestE5m2;
  constexpr std::uint32_t kSmallestNormal = 127 - 14, kMantissa = 2;
  const std::uint32_t own = std::bit_cast<std::uint32_t>(x) >> 23 & 255u,
                      exponent = own > kSmallestNormal ? own : kSmallestNormal;
  // The distance of neighbours, times 1.5 · 2^23: adding it leaves no bits below that distance.
  const float step = std::bit_cast<float>((exponent - kMantissa) << 23), shift = step * 12582912.0f;
  const float sum = x + shift;
  return sum - shift;
}

// out[r,i] = scale · nearest_e5m2(x[r,i] / scale). The scale is bound / 57344, or with bound = 0 the row's
// own: its largest magnitude / 57344. x, out [R,M] f32 or bf16, of one type,
// without gaps; they may be the same memory.
struct RoundToE5m2Args {
  TensorView x, out;
  float bound = 0;
};
void round_to_e5m2(ThreadPool& pool, const RoundToE5m2Args& args);

}  // namespace switchyard
