// A causal convolution of each channel with a few taps, then silu: what the gated delta net does with
// queries, keys and values. It looks at tokens of the same segment only.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// y[s] = silu(sum over j of w[c, j] · x[s - (K - 1) + j]), in float32, rounded once. What is before the first
// token is in `tail`, which then becomes the last K - 1 tokens' x; without it there are
// zeros. Views have no gaps.
struct CausalConvArgs {
  TensorView x;         // [B,S,C], f32 or bf16
  TensorView w;         // [C,K] f32
  TensorView segments;  // [B,S] i32; undefined: one segment
  TensorView tail;      // [B,K-1,C] as x, or undefined; without segments only
  TensorView y;         // as x
};
void causal_conv(ThreadPool& pool, const CausalConvArgs& args);

// Gradients, of a convolution without a tail. dw sums in an order that does not depend
// on the number of threads.
struct CausalConvBackwardArgs {
  TensorView x, w, segments;  // as in CausalConvArgs
  TensorView dy;              // as x
  TensorView dx;              // as x
  TensorView dw;              // [C,K] f32
};
void causal_conv_backward(ThreadPool& pool, const CausalConvBackwardArgs& args);

}  // namespace switchyard
