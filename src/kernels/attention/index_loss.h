// The loss that trains an indexer (DeepSeek-V3.2, section 2.1): the distance between the softmax of the
// indexer's scores and the shares that attention gives to keys.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// shares[b,s,t] = sum over heads of softmax over t of scale * q[b,s,n] . k[b,t,n], over the keys that query s
// sees, of those only the chosen ones where `chosen` is given; others are 0. fp32. Views have no gaps.
struct HeadSharesArgs {
  TensorView q;             // [B,S,N,D], f32 or bf16
  TensorView k;             // [B,T,N,D] as q
  TensorView q_index = {};  // as in IndexScoresArgs
  TensorView q_segment = {};
  TensorView kv_segment = {};
  TensorView chosen = {};  // [B,S,words_of_keys(T)] i32
  float scale = 1;
  TensorView shares;  // [B,S,T] f32
};
void head_shares(ThreadPool& pool, const HeadSharesArgs& args);

// loss = factor * sum over rows of sum over t of p (log(p + eps) - log(c + eps)), where p is the row of
// shares over its sum plus eps, c the softmax of the row of scores (of the chosen ones alone where `chosen`
// is given), and eps 1e-8. Rows without a score above -infinity give 0.
struct IndexLossArgs {
  TensorView scores;       // [rows,T] f32, or more dims before T
  TensorView shares;       // as scores
  TensorView chosen = {};  // [rows, words_of_keys(T)] i32
  double factor = 1;
  TensorView loss;  // [] f32
};
void index_loss(ThreadPool& pool, const IndexLossArgs& args);

// The gradient of `gradient` times that loss with respect to the scores; 0 where they have no part in it.
struct IndexLossBackwardArgs {
  TensorView scores, shares, chosen;  // as in IndexLossArgs
  double factor = 1;
  TensorView gradient;  // [] f32
  TensorView dscores;   // as scores
};
void index_loss_backward(ThreadPool& pool, const IndexLossBackwardArgs& args);

}  // namespace switchyard
