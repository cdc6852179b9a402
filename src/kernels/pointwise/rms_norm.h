// Root-mean-square normalisation over the last dim (Zhang & Sennrich 2019).
#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// Rows of which each rank has a part: `dim` elements in all parts, and what adds one float a row up over the
// ranks, in place. `sums`: [rows] f32. Where the pool only counts work, add_up is called with a view of that
// shape whose elements are not set.
struct SplitRows {
  std::int64_t dim;
  std::function<void(const TensorView& sums)> add_up;
};

// y = x / sqrt(mean(x^2) + eps) * (scale + scale_offset). Views have no gaps. Statistics and product are
// fp32, the product is rounded once. With `split`, dim and scale are those of this rank's part, and means are
// over all parts.
struct RmsNormArgs {
  TensorView x;      // [rows, dim], or more dims, of which the last is dim; f32 or bf16
  TensorView scale;  // [dim], f32 or bf16
  float eps = 0;
  TensorView y;     // as x; may be x
  TensorView rstd;  // [rows] f32, or more dims: 1 / sqrt(mean(x^2) + eps), kept for the backward pass
  const SplitRows* split = nullptr;
  float scale_offset = 0;
};
void rms_norm(ThreadPool& pool, const RmsNormArgs& args);

// Gradients of rms_norm, split or not. Both outputs are overwritten. dscale sums over rows in a fixed order
// that does not depend on the number of threads.
struct RmsNormBackwardArgs {
  TensorView x, scale, rstd;  // as in RmsNormArgs
  TensorView dy;              // as x
  TensorView dx;              // as x; may be dy
  TensorView dscale;          // [dim] f32
  const SplitRows* split = nullptr;
  float scale_offset = 0;
};
void rms_norm_backward(ThreadPool& pool, const RmsNormBackwardArgs& args);

}  // namespace switchyard
