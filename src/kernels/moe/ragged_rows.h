// Moves vectors of tokens to rows that are sorted by expert, and back.
//
// T tokens have K (token, expert) assignments each; an assignment may have a row, at a position in [0, R).
// Index views are int32. x is f32 or bf16, arithmetic is fp32. Views have no gaps; results must not overlap
// operands. Any dim may be 0. Bit-identical for any number of threads.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[i,:] = w[i] · x[index[i],:]. The product is fp32, rounded once.
struct RaggedGatherArgs {
  TensorView x;      // [T,m]
  TensorView index;  // [R] i32, in [0, T)
  TensorView w;      // [R] f32; undefined: 1
  TensorView out;    // [R,m], dtype of x
};
void ragged_gather(ThreadPool& pool, const RaggedGatherArgs& args);

// out[t,:] = sum over k of w[t,k] · x[position[t,k],:], in the order of k, over the positions in [0, R). A
// token with none gets zeros.
struct RaggedGatherReduceArgs {
  TensorView x;         // [R,m]
  TensorView position;  // [T,K] i32
  TensorView w;         // [T,K] f32; undefined: 1
  TensorView out;       // [T,m] f32 or bf16
};
void ragged_gather_reduce(ThreadPool& pool, const RaggedGatherReduceArgs& args);

// dw[t,k] = <dy[t,:], x[position[t,k],:]>, and 0 for a position outside [0, R).
struct RaggedRowDotArgs {
  TensorView dy;        // [T,m]
  TensorView x;         // [R,m], dtype of dy
  TensorView position;  // [T,K] i32
  TensorView dw;        // [T,K] f32
};
void ragged_row_dot(ThreadPool& pool, const RaggedRowDotArgs& args);

}  // namespace switchyard
