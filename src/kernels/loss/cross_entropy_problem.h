// What cross_entropy's implementations are given (internal to kernels/).
#pragma once

#include "kernels/loss/cross_entropy.h"
#include "kernels/product/logits_problem.h"

namespace switchyard {

// CrossEntropyLogits (kernels/loss/cross_entropy.h) as sizes and addresses.
struct CrossEntropyProblem {
  std::int64_t rows = 0;
  std::int64_t emb = 0;
  std::int64_t vocab = 0;        // local columns
  std::int64_t vocab_begin = 0;  // global id of local column 0
  DType dtype = DType::f32;      // of hidden and weight: f32 or bf16; products accumulate in fp32
  const void* hidden = nullptr;  // [rows, emb]
  const void* weight = nullptr;  // [vocab, emb] when weight_vocab_major, else [emb, vocab]
  bool weight_vocab_major = false;
  const std::int32_t* targets = nullptr;  // [rows]
  float logit_soft_cap = 0;
  std::int64_t whole_vocab = 0;  // columns of all ranks; 0: as the local ones
};
std::int64_t loss_rows_at_once(const CrossEntropyProblem& problem);

// LossGradientsArgs but for the logits.
struct LossGradientsProblem {
  float* lse = nullptr;  // [rows]
  float* target_logit = nullptr;
  const float* softmax_coefficient = nullptr;
  const float* target_coefficient = nullptr;
  float* dhidden = nullptr;  // [rows, emb]
  void* dweight = nullptr;
  std::function<void(std::int64_t begin, std::int64_t end)> summed;
};

// The functions of cross_entropy.h on addresses: each runs the first implementation of its list that takes
// the problem, or counts the work on an abstract pool.
void run_linear_cross_entropy(ThreadPool& pool, const CrossEntropyProblem& problem, float* lse,
                              float* target_logit);
void run_linear_cross_entropy_backward(ThreadPool& pool, const CrossEntropyProblem& problem, const float* lse,
                                       const float* softmax_coefficient, const float* target_coefficient,
                                       float* dhidden, void* dweight);
void run_linear_cross_entropy_with_gradients(ThreadPool& pool, const CrossEntropyProblem& problem,
                                             const LossGradientsProblem& gradients);

using CrossEntropyRun = void(ThreadPool&, const CrossEntropyProblem&, float* lse, float* target_logit);
using CrossEntropyBackwardRun = void(ThreadPool&, const CrossEntropyProblem&, const float* lse,
                                     const float* softmax_coefficient, const float* target_coefficient,
                                     float* dhidden, void* dweight);
using CrossEntropyGradientsRun = void(ThreadPool&, const CrossEntropyProblem&, const LossGradientsProblem&);

// Adds `count` logits of one row to its sum; logits are soft-capped in place when soft_cap > 0.
using RowSumUpdate = void(float* logits, std::int64_t count, float soft_cap, RowSum& row);
// logits[i] becomes coefficient * exp(logit - lse) * d capped / d product; with bf16 that goes to rounded[i]
// instead. `target` (-1 for none) is the index that loses target_coefficient before the last factor.
struct RowGradient {
  float soft_cap;
  float lse;
  float softmax_coefficient;
  float target_coefficient;
  std::int64_t target;
};
using RowGradientRun = void(float* logits, std::int64_t count, const RowGradient& row, bfloat16* rounded);

// The logits of some rows (loss_rows_at_once) wait in float32 until the rows' sums are known; gemm makes them
// and all products (cross_entropy_kept.cc).
namespace kept_logits {
CrossEntropyGradientsRun gradients_avx512;
CrossEntropyGradientsRun gradients_avx2;
std::size_t workspace(const CrossEntropyProblem& args);
const char* refuses(const CrossEntropyProblem& args);
}  // namespace kept_logits

namespace cpu {
// Fused, in tiles (kernels/cpu/tile_target.h).
namespace amx_tiles {
CrossEntropyRun cross_entropy;
CrossEntropyBackwardRun cross_entropy_backward;
CrossEntropyGradientsRun cross_entropy_gradients;
// Bytes of the buffers that they take for a whole call.
std::size_t cross_entropy_workspace(const CrossEntropyProblem& args, bool backward);
std::size_t cross_entropy_gradients_workspace(const CrossEntropyProblem& args);
// Why they do not take these arguments, or null.
const char* cross_entropy_refuses(const CrossEntropyProblem& args);
const char* cross_entropy_gradients_refuses(const CrossEntropyProblem& args);
}  // namespace amx_tiles
namespace soft_tiles {
CrossEntropyRun cross_entropy;
CrossEntropyBackwardRun cross_entropy_backward;
CrossEntropyGradientsRun cross_entropy_gradients;
std::size_t cross_entropy_workspace(const CrossEntropyProblem& args, bool backward);
std::size_t cross_entropy_gradients_workspace(const CrossEntropyProblem& args);
const char* cross_entropy_refuses(const CrossEntropyProblem& args);
const char* cross_entropy_gradients_refuses(const CrossEntropyProblem& args);
}  // namespace soft_tiles

// The same in tiles, where the model is narrow (cpu/cross_entropy_narrow_simd.cc).
namespace narrow_loss {
CrossEntropyGradientsRun gradients_avx512;
CrossEntropyGradientsRun gradients_avx2;
std::size_t workspace(const CrossEntropyProblem& args);
const char* refuses(const CrossEntropyProblem& args);
}  // namespace narrow_loss

RowSumUpdate row_sum_update_avx512;
RowSumUpdate row_sum_update_avx2;
RowGradientRun row_gradient_avx512;
RowGradientRun row_gradient_avx2;
}  // namespace cpu

}  // namespace switchyard
