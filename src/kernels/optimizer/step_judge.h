// A step's numbers in a GPU's memory, where its update kernels read them, and the judgement of the step
// there. So the host issues a whole step without looking at its results.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {

// The host writes them before the step, but for adam.grad_scale and `goes`, which judge_step writes. As a
// tensor f32 [kUpdateNumbers].
struct UpdateNumbers {
  AdamTerms adam;                              // of gradient descent: grad_scale and learning_rate alone
  float goes = 1;                              // 0: the step is bad, and updates do nothing
  float of_momentum = 0, of_gradient = 0;      // Muon's MomentumTerms that change from step to step
  float rest = 0;                              // nobody reads it
  double learning_rate = 0, further_rest = 0;  // Muon multiplies the rate in double
};
constexpr std::int64_t kUpdateNumbers = 20;
static_assert(sizeof(UpdateNumbers) == kUpdateNumbers * sizeof(float));

// With norm = sqrt of the sum of `squares`, in order: grad_scale = clip / norm where clip > 0 and
// norm >= clip, else 1; `goes` is 1 where the sum of the losses and the norm are finite, else 0. Sums are in
// double, in order.
struct JudgeArgs {
  TensorView squares;       // f64 [n]
  TensorView losses;        // f32 [passes, k]
  std::int64_t column = 0;  // of the losses that are summed
  double clip = 0;          // 0: the gradient is not clipped
  TensorView numbers;       // f32 [kUpdateNumbers]
};
void judge_step(ThreadPool& pool, const JudgeArgs& args);

namespace gpu {
void judge_step(const JudgeArgs& args);
}  // namespace gpu

}  // namespace switchyard
