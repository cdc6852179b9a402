// Output projection and softmax cross-entropy in one pass over tiles: the [rows, vocab] logits never exist.
// Works with the vocabulary sharded: each rank handles its columns, the caller combines lse (log-sum-exp) and
// target logits (kernels/loss/token_loss.h). Views have no gaps.
#pragma once

#include <cstdint>
#include <functional>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// logit[r,v] = hidden[r,:] . weight[:,v], then logit_soft_cap * tanh(logit
// / logit_soft_cap) where the cap is above 0.
struct CrossEntropyLogits {
  TensorView hidden;  // [rows, emb], or more dims, of which the last is emb; f32 or bf16
  TensorView weight;  // [vocab, emb] when weight_vocab_major (tied embedding), else [emb, vocab]; as hidden
  bool weight_vocab_major = false;
  TensorView targets;            // [rows] i32 global ids; one outside the local columns contributes nothing
  std::int64_t vocab_begin = 0;  // global id of local column 0
  std::int64_t whole_vocab = 0;  // columns of all ranks; 0: as the local ones
  float logit_soft_cap = 0;
};

// lse[r] = log of the sum over local columns of exp(logit), -inf when vocab is 0; target_logit[r] = logit at
// the target, 0 when the target is not a local column.
struct LinearCrossEntropyArgs {
  CrossEntropyLogits logits;
  TensorView lse, target_logit;  // [rows] f32
};
void linear_cross_entropy(ThreadPool& pool, const LinearCrossEntropyArgs& args);

// With lse[r] over the whole vocabulary and coefficients per row:
//   dlogit[r,v] = softmax_coefficient[r] * exp(logit - lse[r]) - target_coefficient[r] * [v == target]
// (rounded to the dtype of hidden before the products, as the gradient of a logit in that dtype).
struct LinearCrossEntropyBackwardArgs {
  CrossEntropyLogits logits;
  TensorView lse, softmax_coefficient, target_coefficient;  // [rows] f32
  TensorView dhidden;  // as hidden, but f32: partial over the local columns; overwritten
  // Shape and dtype are the weight's; summed over all rows in fp32, rounded once; overwritten.
  // An undefined view: the gradient is not made.
  TensorView dweight;
};
void linear_cross_entropy_backward(ThreadPool& pool, const LinearCrossEntropyBackwardArgs& args);

// Both at once, for a caller that knows beforehand what the loss's gradient will be. An implementation that
// can makes the logits once: it takes some rows at a time (loss_rows_at_once) and keeps their exponentials,
// rounded to bf16, so that the gradient of a logit is rounded twice, or the logits in float32. Memory is
// bounded by a constant and by what dweight takes in float32.
struct LossGradientsArgs {
  CrossEntropyLogits logits;
  TensorView lse, target_logit;                        // [rows] f32, as the first function gives them
  TensorView softmax_coefficient, target_coefficient;  // [rows] f32, read after `summed`
  TensorView dhidden, dweight;                         // as the second function gives them
  // Called by the calling thread for the rows [begin, end), block after block, when their lse and
  // target_logit are those of the local columns: to make them those of all columns,
  // and to set the coefficients.
  std::function<void(std::int64_t begin, std::int64_t end)> summed;
};
void linear_cross_entropy_with_gradients(ThreadPool& pool, const LossGradientsArgs& args);
// The rows of a block; a function of whole_vocab and the kind of device alone, so that ranks with the same
// rows have the same blocks.
std::int64_t loss_rows_at_once(const CrossEntropyLogits& logits);

}  // namespace switchyard
