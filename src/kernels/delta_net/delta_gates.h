// Decay and strength of the gated delta rule (gated_delta.h), from what a token's products give.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// g = -e^rate · softplus(a + bias), beta = 1 / (1 + e^-b), in float32. Views have no gaps.
struct DeltaGatesArgs {
  TensorView a, b;        // [rows, H], or more dims, of which the last is H; both f32 or both bf16
  TensorView rate, bias;  // [H] f32
  TensorView g, beta;     // as a, f32
};
void delta_gates(ThreadPool& pool, const DeltaGatesArgs& args);

// Its gradients. Sums over rows have an order that does not depend on the number of threads.
struct DeltaGatesBackwardArgs {
  DeltaGatesArgs forward;   // g and beta as delta_gates gave them
  TensorView dg, dbeta;     // as g
  TensorView da, db;        // as a
  TensorView drate, dbias;  // [H] f32
};
void delta_gates_backward(ThreadPool& pool, const DeltaGatesBackwardArgs& args);

}  // namespace switchyard
