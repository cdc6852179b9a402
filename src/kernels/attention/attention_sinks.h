// Sinks of attention: a learned score of each head that takes a part of every query's softmax and gives
// nothing to its output. They are put into what attention() made, which knows nothing of them.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// Turns the out and lse of attention() into those with one more key of score sinks[n] and value 0, which
// attention_backward takes: lse = log(e^lse + e^sink), out = out * e^(lse before - lse). A query without
// keys keeps its zeros. Arithmetic is f32; out is f32 or bf16, rounded once more. Views have no gaps.
struct ApplySinksArgs {
  TensorView sinks;  // [N] f32
  TensorView out;    // [B,S,N,Dv]
  TensorView lse;    // [B,N,S] f32
};
void apply_sinks(ThreadPool& pool, const ApplySinksArgs& args);

// dsinks[n] = -sum over batch and queries of e^(sinks[n] - lse) * (dout . out), of out and lse with the
// sinks. In f32, in an order that does not depend on the number of threads. Views have no gaps.
struct SinkGradientsArgs {
  TensorView sinks;      // [N] f32
  TensorView out, dout;  // [B,S,N,Dv], both f32 or both bf16
  TensorView lse;        // [B,N,S] f32
  TensorView dsinks;     // [N] f32, overwritten
};
void sink_gradients(ThreadPool& pool, const SinkGradientsArgs& args);

}  // namespace switchyard
