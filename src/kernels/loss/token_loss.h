// From each token's log-sum-exp (kernels/loss/cross_entropy.h) to a loss: combines the parts of a split
// vocabulary, makes the coefficients of the loss's gradient, and sums over the tokens. Views have no gaps.
// Bit-identical for any number of threads.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// lse[r] = log of the sum over p of exp(parts[p,r]), in double and in the order of p. parts [P, rows] f32,
// lse [rows] f32.
void combine_log_sums(ThreadPool& pool, const TensorView& parts, const TensorView& lse);

// For a loss (sum of weight * (lse - target_logit + z_loss_multiplier * lse²)) / count over the tokens that
// count, whose own gradient is g:
//   target_coefficient[r] = weight[r] * g / count, or 0 where segments[r] is 0
//   softmax_coefficient[r] = target_coefficient[r] * (1 + 2 * z_loss_multiplier * lse[r])
struct LossCoefficientsArgs {
  TensorView lse;                                      // [rows] f32
  TensorView segments;                                 // [rows] i32
  TensorView weights;                                  // [rows] f32; undefined: each is 1
  TensorView gradient;                                 // [] f32: g; undefined: 1
  TensorView softmax_coefficient, target_coefficient;  // [rows] f32
  double count = 1;
  TensorView count_there;  // [] f64: replaces `count`, and may change from launch to launch of a graph
  double z_loss_multiplier = 0;
};
void loss_coefficients(ThreadPool& pool, const LossCoefficientsArgs& args);

// The loss above and its z part, added in double in the order of the rows, on a GPU in another fixed order,
// and rounded once.
struct SumTokenLossArgs {
  TensorView lse, target_logit;  // [rows] f32
  TensorView segments;           // [rows] i32
  TensorView weights;            // [rows] f32; undefined: each is 1
  TensorView loss, z_loss;       // [] f32
  double count = 1;
  TensorView count_there;  // as above
  double z_loss_multiplier = 0;
};
void sum_token_loss(ThreadPool& pool, const SumTokenLossArgs& args);

// x = x · factor, rounded once to x's dtype, f32 or bf16. factor [] f32 stays on the device; where it is 1, x
// is neither read nor written.
void scale_in_place(ThreadPool& pool, const TensorView& x, const TensorView& factor);

}  // namespace switchyard
