// A soft cap of logits: close to x near 0, and never beyond the cap.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[i] = cap · tanh(x[i] / cap), f32, views without gaps. Bit-identical for any number of threads.
void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out);

// Gradient from what soft_cap made: dx[i] = dout[i] · (1 - (out[i] / cap)²), f32, views without gaps.
void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx);

}  // namespace switchyard
