// Rotary position embedding (Su et al. 2021): rotates pairs of the last dim by an angle per token and pair.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// For every token t, head h and pair i < dim/2 of x [tokens, heads, dim] (f32 or bf16) with values (a, b):
//   y = (a cos - b sin, b cos + a sin), and with `inverse`: (a cos + b sin, b cos - a sin), which is also the
//   gradient.
// The pair is (x[i], x[i + dim/2]), or (x[2i], x[2i+1]) when `interleaved`; y keeps the layout of x.
// cos, sin: [tokens, dim/2] f32, any attention scaling (mscale) already folded in. Element (t, h, d) of both
// x and y is at t*token_stride + h*head_stride + d (strides in elements), so a slice of a wider head works. y
// may be x; elements outside the slice are not touched. dim must be even.
void rope(ThreadPool& pool, DType dtype, const void* x, void* y, std::int64_t tokens, std::int64_t heads,
          std::int64_t dim, std::int64_t token_stride, std::int64_t head_stride, const float* cos,
          const float* sin, bool interleaved, bool inverse);

}  // namespace switchyard
