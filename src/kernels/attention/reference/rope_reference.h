// Scalar truth for rope.h: one pair at a time. Arguments as there.
#pragma once

#include <cstdint>

#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::reference {

template <typename T>
void rope(const T* x, T* y, std::int64_t tokens, std::int64_t heads, std::int64_t dim,
          std::int64_t token_stride, std::int64_t head_stride, const float* cos, const float* sin,
          bool interleaved, bool inverse) {
  const std::int64_t half = dim / 2;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t base = t * token_stride + h * head_stride;
        const std::int64_t first = base + (interleaved ? 2 * i : i);
        const std::int64_t second = base + (interleaved ? 2 * i + 1 : i + half);
        const double a = to_double(x[first]);
        const double b = to_double(x[second]);
        const double c = to_double(cos[t * half + i]);
        const double s = inverse ? -to_double(sin[t * half + i]) : to_double(sin[t * half + i]);
        y[first] = from_double<T>(a * c - b * s);
        y[second] = from_double<T>(b * c + a * s);
      }
    }
  }
}

}  // namespace switchyard::reference
