// What cross_entropy's implementations are given (internal to kernels/).
#pragma once

#include "kernels/cross_entropy.h"
#include "kernels/logits_problem.h"

namespace switchyard {

using CrossEntropyRun = void(ThreadPool&, const LinearCrossEntropyArgs&, float* lse, float* target_logit);
using CrossEntropyBackwardRun = void(ThreadPool&, const LinearCrossEntropyArgs&, const float* lse,
                                     const float* softmax_coefficient, const float* target_coefficient,
                                     float* dhidden, void* dweight);
using CrossEntropyGradientsRun = void(ThreadPool&, const LinearCrossEntropyArgs&, const LossGradients&);

// Adds `count` logits of one row to its sum; logits are soft-capped in place when soft_cap > 0.
using RowSumUpdate = void(float* logits, std::int64_t count, float soft_cap, RowSum& row);
// logits[i] becomes coefficient * exp(logit - lse) * d capped / d product, and with bf16 also goes to
// rounded[i]. `target` (-1 for none) is the index that loses target_coefficient before the last factor.
struct RowGradient {
  float soft_cap;
  float lse;
  float softmax_coefficient;
  float target_coefficient;
  std::int64_t target;
};
using RowGradientRun = void(float* logits, std::int64_t count, const RowGradient& row, bfloat16* rounded);

namespace cpu {
// Fused, in tiles (kernels/cpu/tile_target.h).
namespace amx_tiles {
CrossEntropyRun cross_entropy;
CrossEntropyBackwardRun cross_entropy_backward;
CrossEntropyGradientsRun cross_entropy_gradients;
// Bytes of the buffers that they take for a whole call.
std::size_t cross_entropy_workspace(const LinearCrossEntropyArgs& args, bool backward);
std::size_t cross_entropy_gradients_workspace(const LinearCrossEntropyArgs& args);
// Why they do not take these arguments, or null.
const char* cross_entropy_refuses(const LinearCrossEntropyArgs& args);
const char* cross_entropy_gradients_refuses(const LinearCrossEntropyArgs& args);
}  // namespace amx_tiles
namespace soft_tiles {
CrossEntropyRun cross_entropy;
CrossEntropyBackwardRun cross_entropy_backward;
CrossEntropyGradientsRun cross_entropy_gradients;
std::size_t cross_entropy_workspace(const LinearCrossEntropyArgs& args, bool backward);
std::size_t cross_entropy_gradients_workspace(const LinearCrossEntropyArgs& args);
const char* cross_entropy_refuses(const LinearCrossEntropyArgs& args);
const char* cross_entropy_gradients_refuses(const LinearCrossEntropyArgs& args);
}  // namespace soft_tiles

RowSumUpdate row_sum_update_avx512;
RowSumUpdate row_sum_update_avx2;
RowGradientRun row_gradient_avx512;
RowGradientRun row_gradient_avx2;
}  // namespace cpu

}  // namespace switchyard
