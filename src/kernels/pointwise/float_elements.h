// What portable loops over float32 or bfloat16 elements share.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

// run(T()) with the type of the elements, of f32 or bf16.
template <typename Run>
void with_elements(DType dtype, const Run& run) {
  dtype == DType::f32 ? run(float()) : run(bfloat16());
}

// The sum of x[i] · y[i] in float32: 16 sums side by side, which a vector can hold, added up in their order.
template <typename T>
float dot_product(const T* x, const T* y, std::int64_t count) {
  constexpr std::int64_t kSums = 16;
  float sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (std::int64_t s = 0; s < kSums; ++s)
      sums[s] += static_cast<float>(x[i + s]) * static_cast<float>(y[i + s]);
  }
  for (; i < count; ++i) sums[i % kSums] += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

}  // namespace switchyard
