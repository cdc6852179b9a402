// The arithmetic of an Adam step on one tile of float32 values, and the way there and back for bfloat16.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

inline constexpr std::int64_t kAdamTile = 1024;  // four tiles of float32 fill 16 KiB, half of the L1 cache

struct AdamTerms {
  float grad_scale;
  float mu_decay, mu_gain;             // m = mu_decay*m + mu_gain*g
  float nu_decay, nu_gain;             // v = nu_decay*v + nu_gain*g*g
  float mu_correction, nu_correction;  // factors that remove the bias towards zero
  float grad_share;                    // of the gradient in the first moment as used (Nesterov); 0 without
  float eps, eps_root;
  float learning_rate, weight_decay;
};

// weight, mu and nu are updated in place; all four hold kAdamTile elements.
void adam_tile(const AdamTerms& terms, float* weight, const float* grad, float* mu, float* nu);

// kAdamTile elements each; narrowing rounds as bfloat16(float) does.
void widen_tile(const bfloat16* from, float* to);
void narrow_tile(const float* from, bfloat16* to);

}  // namespace switchyard
