// The judgement of a training step where its gradients are: the host issues a whole step without looking at
// its results. All sums are in double and in order, so every device has the same bits.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/optimizer/update_numbers.h"

namespace switchyard {

// sums[r] = the sum of rows[r, :], from left to right. One or two matrices in a call, of one device.
struct RowSums {
  TensorView rows;  // f32 or f64 [r,n]
  TensorView sums;  // f64 [r]
};
void sum_rows(ThreadPool& pool, std::span<const RowSums> matrices);

// Places of a step's losses among their sums. In a pipeline the balance loss of each MoE layer has one behind
// them: the sum then does not depend on which layers a stage has.
// The last three are no losses: they are of pairs (ops/preference_loss.h), and are summed alike.
enum LossPlace : std::size_t {
  kLoss,
  kLmLoss,
  kZLoss,
  kBalanceLoss,
  kPredictionLoss,
  kIndexerLoss,
  kChosenReward,
  kRejectedReward,
  kPreferred,
  kLosses
};

// A rank of several says a number for the step's loss, and the ranks' numbers are added: the loss on the rank
// that speaks and on those where the loss is not finite, else 0.
struct SpokenLossArgs {
  TensorView sums;            // f64 [kLosses + layers]
  bool from_parts = false;    // in a pipeline: writes the balance loss and the loss of their parts first
  double balance_factor = 1;  // sum over layers * balance_factor / layers_averaged is the balance loss
  double layers_averaged = 1;
  bool speaks = false;
  TensorView spoken;  // f64 [1]
};
void spoken_loss(ThreadPool& pool, const SpokenLossArgs& args);

// With norm = sqrt of the sum of `squares`: grad_scale = clip / norm where clip > 0 and norm >= clip, else 1;
// the step is good where loss and norm are finite.
struct JudgeArgs {
  TensorView squares;  // f64 [n]
  TensorView loss;     // f64 [1]
  double clip = 0;     // 0: the gradient is not clipped
  TensorView numbers;  // UpdateNumbers: grad_scale and is_good are written
  TensorView is_good;  // f32 [1]: the same once more, for the step's report
};
void judge_step(ThreadPool& pool, const JudgeArgs& args);

namespace gpu {
void sum_rows(const std::span<const RowSums>& matrices);
void spoken_loss(const SpokenLossArgs& args);
void judge_step(const JudgeArgs& args);
}  // namespace gpu

}  // namespace switchyard
