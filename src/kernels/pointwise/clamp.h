// A hard bound of numbers, of either sign.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[i] = x[i] in [-bound, bound], else the nearer end; NaN stays NaN. f32 or bf16, views without gaps, all
// of one dtype; the bound is rounded to it. Bit-identical for any number of threads.
void clamp(ThreadPool& pool, float bound, const TensorView& x, const TensorView& out);

// Gradient from what clamp was given: dx[i] = dout[i] where -bound <= x[i] <= bound, else 0.
void clamp_backward(ThreadPool& pool, float bound, const TensorView& x, const TensorView& dout,
                    const TensorView& dx);

}  // namespace switchyard
