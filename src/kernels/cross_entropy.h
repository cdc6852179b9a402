// Output projection and softmax cross-entropy in one pass over tiles: the [rows, vocab] logits never exist.
// Works with the vocabulary sharded: each rank handles its columns, the caller combines lse (log-sum-exp) and
// target logits.
#pragma once

#include <cstdint>
#include <functional>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// logit[r,v] = hidden[r,:] . weight[:,v], then logit_soft_cap * tanh(logit / logit_soft_cap) when that is >
// 0.
struct LinearCrossEntropyArgs {
  std::int64_t rows = 0;
  std::int64_t emb = 0;
  std::int64_t vocab = 0;        // local columns
  std::int64_t vocab_begin = 0;  // global id of local column 0
  DType dtype = DType::f32;      // of hidden and weight: f32 or bf16; products accumulate in fp32
  const void* hidden = nullptr;  // [rows, emb]
  const void* weight = nullptr;  // [vocab, emb] when weight_vocab_major (tied embedding), else [emb, vocab]
  bool weight_vocab_major = false;
  const std::int32_t* targets =
      nullptr;  // [rows] global ids; one outside the local columns contributes nothing
  float logit_soft_cap = 0;
  std::int64_t whole_vocab = 0;  // columns of all ranks; 0: as the local ones
};

// lse[r] = log of the sum over local columns of exp(logit), -inf when vocab is 0; target_logit[r] = logit at
// the target, 0 when the target is not a local column. Both [rows] f32.
void linear_cross_entropy(ThreadPool& pool, const LinearCrossEntropyArgs& args, float* lse,
                          float* target_logit);

// With lse[r] over the whole vocabulary and coefficients per row:
//   dlogit[r,v] = softmax_coefficient[r] * exp(logit - lse[r]) - target_coefficient[r] * [v == target]
// (rounded to `dtype` before the products, as the gradient of a logit in that dtype). Writes dhidden [rows,
// emb] f32, partial over the local columns, and dweight in the layout and dtype of weight, summed over all
// rows in fp32 and rounded once; both overwritten.
void linear_cross_entropy_backward(ThreadPool& pool, const LinearCrossEntropyArgs& args, const float* lse,
                                   const float* softmax_coefficient, const float* target_coefficient,
                                   float* dhidden, void* dweight);

// Both at once, for who knows beforehand what the loss's gradient will be. A kernel that can makes the logits
// once: it takes some rows at a time (loss_rows_at_once) and keeps their exponentials, rounded to bf16, so
// that the gradient of a logit is rounded twice. Memory is bounded by a constant and by what dweight takes in
// float32.
struct LossGradients {
  float* lse = nullptr;  // as the first function gives them
  float* target_logit = nullptr;
  // [rows], as the second one takes them. They are read after `summed`.
  const float* softmax_coefficient = nullptr;
  const float* target_coefficient = nullptr;
  float* dhidden = nullptr;  // as the second one gives them
  void* dweight = nullptr;
  // Called by the calling thread for the rows [begin, end), block after block, when their lse and
  // target_logit are those of the local columns: to make them those of all columns, and to set the
  // coefficients.
  std::function<void(std::int64_t begin, std::int64_t end)> summed;
};
void linear_cross_entropy_with_gradients(ThreadPool& pool, const LinearCrossEntropyArgs& args,
                                         const LossGradients& gradients);
// The rows of a block; a function of whole_vocab alone, so that ranks with the same rows have the same
// blocks.
std::int64_t loss_rows_at_once(const LinearCrossEntropyArgs& args);

}  // namespace switchyard
