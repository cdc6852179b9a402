// UpdateNumbers: the scalars of a step's update. They lie where the weights are, so a step can be issued
// before anybody knows its gradient's norm.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"

namespace switchyard {

struct AdamTerms {
  float grad_scale;                    // factor of the gradient, applied first
  float mu_decay, mu_gain;             // m = mu_decay*m + mu_gain*g
  float nu_decay, nu_gain;             // v = nu_decay*v + nu_gain*g*g
  float mu_correction, nu_correction;  // factors that remove the bias towards zero
  float grad_share;                    // of the gradient in the first moment as used (Nesterov); 0 without
  float eps, eps_root;
  float learning_rate, weight_decay;
};

// Muon computes momentum = decay*momentum + gain*g, direction = of_gradient*g + of_momentum*momentum.
struct MomentumTerms {
  float decay, gain;
  float of_momentum, of_gradient;
};

// The host writes the numbers before the step, but for adam.grad_scale and is_good, which judge_step writes
// (step_judge.h). As a tensor: f32 [kUpdateNumbers].
struct UpdateNumbers {
  AdamTerms adam;            // of gradient descent: grad_scale and learning_rate alone
  float is_good = 1;         // 0: the step is bad, and no update changes anything
  MomentumTerms momentum{};  // with Muon
  float unused = 0;          // so that all 80 bytes are written
  double learning_rate = 0;  // Muon multiplies the rate in double
};
constexpr std::int64_t kUpdateNumbers = 20;
static_assert(sizeof(UpdateNumbers) == kUpdateNumbers * sizeof(float));

// f32 [1]: whether the step is good, as kernels read it.
TensorView is_good_of(const TensorView& numbers);
// CHECK unless `numbers` are f32 [kUpdateNumbers]; `op` names the caller.
void check_numbers(const char* op, const TensorView& numbers);
// Numbers in memory of the host, for a kernel there.
const UpdateNumbers& host_numbers(const TensorView& numbers);

}  // namespace switchyard
