// The implementations behind cross_entropy.h, of every device,
// and what those of CPUs are given. Internal to kernels/loss.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/loss/cross_entropy.h"
#include "kernels/product/logit_epilogue.h"

namespace switchyard {

// The arguments of cross_entropy.h as sizes and addresses.
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
  std::int64_t rows_at_once = 0;   // loss_rows_at_once
  float* lse = nullptr;            // [rows]; the backward pass reads it
  float* target_logit = nullptr;   // [rows]
  const float* softmax = nullptr;  // [rows] coefficients
  const float* target = nullptr;   // [rows] coefficients
  float* dhidden = nullptr;        // [rows, emb]
  void* dweight = nullptr;         // as weight
  bool weight_trains = false;      // dweight is wanted
  const std::function<void(std::int64_t begin, std::int64_t end)>* summed = nullptr;
};
using CrossEntropyKernel = void(ThreadPool& pool, const CrossEntropyProblem& problem);
using CrossEntropyBytes = std::size_t(const CrossEntropyProblem& problem);
using CrossEntropyRefusal = const char*(const CrossEntropyProblem& problem);

inline std::int64_t local_columns(const CrossEntropyLogits& logits) {
  return logits.weight.dim(logits.weight_vocab_major ? 0 : 1);
}

// The rows of a block of so many columns that wait for their sums.
inline std::int64_t loss_rows_of(std::int64_t columns, bool on_gpu) {
  // 1 GiB of float32 logits, or 128 MiB of exponentials in bf16. A block reads and writes all of dweight,
  // which few rows would not pay for.
  constexpr std::int64_t kGpuElements = std::int64_t{1} << 28, kElements = std::int64_t{1} << 26,
                         kLeast = 256;
  const std::int64_t most = (on_gpu ? kGpuElements : kElements) / std::max<std::int64_t>(1, columns);
  return std::max<std::int64_t>(1, most / kLeast) * kLeast;
}

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

namespace cpu {
RowSumUpdate row_sum_update_avx2, row_sum_update_avx512;
RowGradientRun row_gradient_avx2, row_gradient_avx512;

// Fused, in tiles (kernels/cpu/tile_target.h).
namespace amx_tiles {
CrossEntropyKernel cross_entropy, cross_entropy_backward, cross_entropy_gradients;
CrossEntropyBytes cross_entropy_bytes, cross_entropy_backward_bytes, cross_entropy_gradients_bytes;
CrossEntropyRefusal cross_entropy_refuses, cross_entropy_gradients_refuses;
}  // namespace amx_tiles
namespace soft_tiles {
CrossEntropyKernel cross_entropy, cross_entropy_backward, cross_entropy_gradients;
CrossEntropyBytes cross_entropy_bytes, cross_entropy_backward_bytes, cross_entropy_gradients_bytes;
CrossEntropyRefusal cross_entropy_refuses, cross_entropy_gradients_refuses;
}  // namespace soft_tiles

// The gradients in tiles, where the model is narrow (cpu/cross_entropy_narrow_simd.cc).
CrossEntropyKernel narrow_gradients_avx2, narrow_gradients_avx512;
CrossEntropyBytes narrow_gradients_bytes;
CrossEntropyRefusal narrow_gradients_refuse;
}  // namespace cpu

// Blocks of logits by gemm (cross_entropy_blocks.cc).
namespace logit_blocks {
// A second pass over a block sums its logits, or makes gradients of them.
template <RowSumUpdate* update>
void tiled(ThreadPool& pool, const CrossEntropyProblem& problem);
template <RowGradientRun* gradient>
void tiled_backward(ThreadPool& pool, const CrossEntropyProblem& problem);
CrossEntropyBytes tiled_bytes, tiled_backward_bytes;
// The kernel of products does so while the logits are hot.
CrossEntropyKernel hot, hot_backward;
CrossEntropyBytes hot_bytes, hot_backward_bytes;
CrossEntropyRefusal hot_refuses;
// The logits of rows_at_once rows wait in float32 until the rows' sums are known.
template <RowSumUpdate* update, RowGradientRun* gradient>
void kept_gradients(ThreadPool& pool, const CrossEntropyProblem& problem);
CrossEntropyBytes kept_gradients_bytes;
CrossEntropyRefusal kept_gradients_refuse;
}  // namespace logit_blocks

namespace gpu {
void linear_cross_entropy(const LinearCrossEntropyArgs& args);
void linear_cross_entropy_backward(const LinearCrossEntropyBackwardArgs& args);
void linear_cross_entropy_with_gradients(const LossGradientsArgs& args);

// They take models up to 128 wide in bfloat16, on Hopper: logits are in registers (cuda/narrow_loss.cu).
void narrow_cross_entropy(const LinearCrossEntropyArgs& args);
void narrow_cross_entropy_backward(const LinearCrossEntropyBackwardArgs& args);
void narrow_cross_entropy_with_gradients(const LossGradientsArgs& args);
const char* narrow_loss_refuses(const CrossEntropyLogits& logits);
}  // namespace gpu

}  // namespace switchyard
