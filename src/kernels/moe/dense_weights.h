// Spreads routing weights over all experts, for the path that runs every expert on every token.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[e,t] = the sum of weights[t,k] over the k with ids[t,k] = e, in the order of k; 0 for an expert that
// token t did not choose. Views have no gaps. Bit-identical for any number of threads.
struct DenseWeightsArgs {
  TensorView ids;      // [T,K] i32, each in [0, E), or -1: no expert
  TensorView weights;  // [T,K] f32
  TensorView out;      // [E,T] f32
};
void dense_weights(ThreadPool& pool, const DenseWeightsArgs& args);

// dweights[t,k] = dout[ids[t,k],t], or 0 without an expert.
struct DenseWeightsBackwardArgs {
  TensorView ids;       // [T,K] i32, each in [0, E), or -1
  TensorView dout;      // [E,T] f32
  TensorView dweights;  // [T,K] f32
};
void dense_weights_backward(ThreadPool& pool, const DenseWeightsBackwardArgs& args);

}  // namespace switchyard
