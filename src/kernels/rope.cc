#include "kernels/rope.h"

#include <algorithm>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::int64_t elements_per_piece = 1 << 14;

// One pair of one head. Reads both values before it writes, so in place is safe.
template <typename T>
void rotate(const T* x, T* y, std::int64_t first, std::int64_t second, float cos, float sin) {
  const float a = static_cast<float>(x[first]);
  const float b = static_cast<float>(x[second]);
  y[first] = T(a * cos - b * sin);
  y[second] = T(b * cos + a * sin);
}

template <typename T>
void rotate_head(const T* x, T* y, std::int64_t half, const float* cos, const float* sin, bool interleaved,
                 float sign) {
  if (interleaved) {
    for (std::int64_t i = 0; i < half; ++i) rotate(x, y, 2 * i, 2 * i + 1, cos[i], sign * sin[i]);
  } else {
    for (std::int64_t i = 0; i < half; ++i) rotate(x, y, i, i + half, cos[i], sign * sin[i]);
  }
}

}  // namespace

void rope(ThreadPool& pool, DType dtype, const void* x, void* y, std::int64_t tokens, std::int64_t heads,
          std::int64_t dim, std::int64_t token_stride, std::int64_t head_stride, const float* cos,
          const float* sin, bool interleaved, bool inverse) {
  CHECK(is_float(dtype), "rope of {}", name_of(dtype));
  CHECK(dim % 2 == 0, "rope dim {} is odd", dim);
  const double rotated = static_cast<double>(tokens * heads * dim);
  if (pool.skips({"rope", dtype, 3 * rotated, 2 * rotated * static_cast<double>(size_of(dtype))})) return;
  const std::int64_t half = dim / 2;
  const float sign = inverse ? -1.0f : 1.0f;
  const std::int64_t grain =
      std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(1, heads * dim));
  pool.for_range(tokens, grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t at = t * token_stride + h * head_stride;
        const float* c = cos + t * half;
        const float* s = sin + t * half;
        if (dtype == DType::f32) {
          rotate_head(static_cast<const float*>(x) + at, static_cast<float*>(y) + at, half, c, s, interleaved,
                      sign);
        } else {
          rotate_head(static_cast<const bfloat16*>(x) + at, static_cast<bfloat16*>(y) + at, half, c, s,
                      interleaved, sign);
        }
      }
    }
  });
}

}  // namespace switchyard
