// What the optimizers do to every weight by itself, in one pass over the arrays.
//
// Arrays are f32 or bf16 in any mix. Arithmetic is fp32, each `a*b + c` below one fused operation, and what
// is stored is rounded once, to nearest even. So results have the same bits on every instruction set and for
// any number of threads; on a GPU sums of squares are added in another fixed order. The arrays of a call have
// as many elements each, no gaps, and do not overlap.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

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
// and squares = the sum of squares of the new weights as stored, added as sums_of_squares adds
// (elementwise.h). All updates of a list are of one device, and a GPU makes them at once.
struct AdamArrays {
  TensorView weight, grad, mu, nu;
  TensorView squares;  // [1] f64
  bool decays = true;  // false: without weight_decay
};
// On a GPU, `numbers` may be UpdateNumbers in its memory (step_judge.h): they replace all terms but
// weight_decay, and nothing is updated where they say that the step is bad.
void adam_update(ThreadPool& pool, const AdamTerms& terms, std::span<const AdamArrays> updates,
                 const TensorView& numbers = {});

// weight -= rate * (grad * grad_scale), and squares and `numbers` as above.
struct DescentArrays {
  TensorView weight, grad;
  TensorView squares;  // [1] f64
};
void descent_update(ThreadPool& pool, float rate, float grad_scale, std::span<const DescentArrays> updates,
                    const TensorView& numbers = {});

// With g = grad * grad_scale: momentum = decay*momentum + gain*g, and, before that is rounded,
// direction = of_gradient*g + of_momentum*momentum, which is float32. On a GPU, `numbers` as above replace
// all terms but decay and gain; where they say that the step is bad, `direction` is not written.
struct MomentumTerms {
  float grad_scale;
  float decay, gain;
  float of_momentum, of_gradient;
};
void momentum_update(ThreadPool& pool, const MomentumTerms& terms, const TensorView& grad,
                     const TensorView& momentum, const TensorView& direction, const TensorView& numbers = {});

// weight -= rate*direction + shrink*weight, and squares as above; direction is float32.
struct DirectionArrays {
  TensorView direction, weight;
  TensorView squares;  // [1] f64
};
void direction_update(ThreadPool& pool, float rate, float shrink, const DirectionArrays& update);
// Does the same on a GPU with rate = learning_rate*scale and shrink = learning_rate*decay, products in
// double, by `numbers` as above.
void direction_update_by_numbers(ThreadPool& pool, double scale, double decay, const TensorView& numbers,
                                 const DirectionArrays& update);

}  // namespace switchyard
