// Root-mean-square normalisation over the last dim (Zhang & Sennrich 2019).
#pragma once

#include <cstdint>
#include <functional>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// Rows of which each rank has a part: `dim` elements all together, and what adds one float a row up over the
// ranks, in place. It is also called, with an address that must not be read, where the pool only counts work.
struct SplitRows {
  std::int64_t dim;
  std::function<void(float* sums)> add_up;
};

// y = x / sqrt(mean(x^2) + eps) * scale. x, y: [rows, dim] in `dtype` (f32 or bf16); scale: [dim] in
// `scale_dtype` (f32 or bf16); rstd: [rows] f32 = 1 / sqrt(mean(x^2) + eps), kept for the backward pass.
// Statistics and product are fp32, the product is rounded once. y may be x. With `split`, `dim` and `scale`
// are those of this rank's part, and means are over all parts.
void rms_norm(ThreadPool& pool, DType dtype, const void* x, const void* scale, DType scale_dtype,
              std::int64_t rows, std::int64_t dim, float eps, void* y, float* rstd,
              const SplitRows* split = nullptr);

// Gradients of rms_norm, split or not. dy, dx: [rows, dim] in `dtype`; dscale: [dim] f32. Both outputs are
// overwritten. dscale sums over rows in a fixed order that does not depend on the number of threads. dx may
// be dy.
void rms_norm_backward(ThreadPool& pool, DType dtype, const void* x, const void* scale, DType scale_dtype,
                       const float* rstd, const void* dy, std::int64_t rows, std::int64_t dim, void* dx,
                       float* dscale, const SplitRows* split = nullptr);

}  // namespace switchyard
