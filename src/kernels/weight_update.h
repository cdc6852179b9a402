// What the optimizers do to every weight by itself, in one pass over the arrays.
//
// Arrays are f32 or bf16 in any mix. Arithmetic is fp32, each `a*b + c` below one fused operation, and what
// is stored is rounded once, to nearest even. So results have the same bits on every instruction set and for
// any number of threads. Arrays must not overlap.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

struct FlatArray {
  DType dtype = DType::f32;
  void* data = nullptr;
};
struct ConstFlatArray {
  DType dtype = DType::f32;
  const void* data = nullptr;
};

struct AdamTerms {
  float grad_scale;
  float mu_decay, mu_gain;             // m = mu_decay*m + mu_gain*g
  float nu_decay, nu_gain;             // v = nu_decay*v + nu_gain*g*g
  float mu_correction, nu_correction;  // factors that remove the bias towards zero
  float grad_share;                    // of the gradient in the first moment as used (Nesterov); 0 without
  float eps, eps_root;
  float learning_rate, weight_decay;
};

// With g = grad * grad_scale, m and v as above before they are rounded:
//   weight -= learning_rate * (weight_decay*weight
//                              + (grad_share*g + mu_correction*m) / (sqrt(nu_correction*v + eps_root) + eps))
// Returns the sum of squares of the new weights as stored, added as sum_of_squares adds (elementwise.h).
double adam_update(ThreadPool& pool, const AdamTerms& terms, FlatArray weight, ConstFlatArray grad,
                   FlatArray mu, FlatArray nu, std::int64_t count);

// weight -= rate * (grad * grad_scale). Returns the sum of squares of the new weights.
double descent_update(ThreadPool& pool, float rate, float grad_scale, FlatArray weight, ConstFlatArray grad,
                      std::int64_t count);

// With g = grad * grad_scale: momentum = decay*momentum + gain*g, and, before that is rounded,
// direction = of_gradient*g + of_momentum*momentum.
struct MomentumTerms {
  float grad_scale;
  float decay, gain;
  float of_momentum, of_gradient;
};
void momentum_update(ThreadPool& pool, const MomentumTerms& terms, ConstFlatArray grad, FlatArray momentum,
                     float* direction, std::int64_t count);

// weight -= rate*direction + shrink*weight. Returns the sum of squares of the new weights.
double direction_update(ThreadPool& pool, float rate, float shrink, const float* direction, FlatArray weight,
                        std::int64_t count);

}  // namespace switchyard
