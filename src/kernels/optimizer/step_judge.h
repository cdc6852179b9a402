// A step's numbers in a GPU's memory, where its update kernels read them, and the judgement of the step
// there. So the host issues a whole step without looking at its results.
#pragma once

#include "core/tensor_view.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {

// The host writes `adam` but for its grad_scale before the step; judge_step writes the rest. As a tensor
// f32 [16].
struct UpdateNumbers {
  AdamTerms adam;  // of gradient descent: grad_scale and learning_rate alone
  float goes = 1;  // 0: the step is bad, and updates do nothing
  float rest[3] = {};
};
static_assert(sizeof(UpdateNumbers) == 64);

// With norm = sqrt of the sum of `squares`, in order: grad_scale = clip / norm where clip > 0 and
// norm >= clip, else 1; `goes` is whether the sum of the losses and the norm are finite. Sums are in double.
struct JudgeArgs {
  TensorView squares;       // f64 [n]
  TensorView losses;        // f32 [passes, k]
  std::int64_t column = 0;  // of the losses that are summed
  double clip = 0;          // 0: the gradient is not clipped
  TensorView numbers;       // f32 [16]
};
// On a GPU only, real or emulated.
void judge_step(const JudgeArgs& args);

namespace gpu {
void judge_step(const JudgeArgs& args);
}  // namespace gpu

}  // namespace switchyard
