// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), causal within segments.
//
// Each value head has a state S [Dk,Dv] in float32, zero where a segment begins. A token with unit vectors q
// and k, value v, decay e^g and strength beta makes S <- e^g S; S <- S + k (beta (v - S^T k))^T; out = S^T q.
// Value heads r·h to r·h + r - 1 are served by key head h, with r = Hv / Hk. Views have no gaps. Results do
// not depend on the number of threads. A GPU goes token by token, and takes keys of
// at most 512 elements (Error(runtime)).
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

struct GatedDeltaArgs {
  TensorView q, k;     // [B,S,Hk,Dk], f32 or bf16
  TensorView v;        // [B,S,Hv,Dv], as q
  TensorView g, beta;  // [B,S,Hv] f32; g is at most 0
  // [B,S] i32: a token of another segment than the one before begins anew; undefined: one segment
  TensorView segments;
  std::int64_t chunk = 64;   // tokens that products take at once; it changes rounding only
  bool unit_vectors = true;  // q and k are divided by sqrt(sum of squares + 1e-6)
  float scale = 1;           // of q, after that
  // [B,Hv,Dk,Dv] f32: before the first token, and then after the last; undefined: 0, and not kept
  TensorView state;
  TensorView out;  // as v
};
void gated_delta(ThreadPool& pool, const GatedDeltaArgs& args);

// Gradients of all inputs that have them, from a state of 0 (no state is given).
struct GatedDeltaBackwardArgs {
  GatedDeltaArgs forward;  // out is not read
  TensorView dout;         // as v
  TensorView dq, dk, dv;   // as q, k, v
  TensorView dg, dbeta;    // [B,S,Hv] f32
};
void gated_delta_backward(ThreadPool& pool, const GatedDeltaBackwardArgs& args);

}  // namespace switchyard
