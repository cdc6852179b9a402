// The optimizers' updates of single weights, in one pass over the arrays.
//
// Arrays are f32 or bf16 in any mix. Arithmetic is fp32, each `a*b + c` below one fused operation, and what
// is stored is rounded once, to nearest even. So results have the same bits on every instruction set and for
// any number of threads; on a GPU sums of squares are added in another fixed order. The arrays of a call have
// as many elements each, no gaps, and do not overlap.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/optimizer/update_numbers.h"

namespace switchyard {

// `numbers` below: UpdateNumbers where the weights are. Where they say that the step is bad, weights, state
// and squares stay as they are.

// With g = grad * grad_scale, m and v as in AdamTerms before they are rounded:
//   weight -= learning_rate * (weight_decay*weight
//                              + (grad_share*g + mu_correction*m) / (sqrt(nu_correction*v + eps_root) + eps))
// and squares = the sum of squares of the new weights as stored, added as sums_of_squares adds
// (elementwise.h). All updates of a list are of one device, and a GPU makes them at once.
struct AdamArrays {
  TensorView weight, grad, mu, nu;
  TensorView squares;  // [1] f64
  bool decays = true;  // false: without weight_decay
};
void adam_update(ThreadPool& pool, const TensorView& numbers, std::span<const AdamArrays> updates);

// weight -= learning_rate * (grad * grad_scale), and squares as above.
struct DescentArrays {
  TensorView weight, grad;
  TensorView squares;  // [1] f64
};
void descent_update(ThreadPool& pool, const TensorView& numbers, std::span<const DescentArrays> updates);

// With g = grad * grad_scale: momentum = decay*momentum + gain*g, and, before that is rounded,
// direction = of_gradient*g + of_momentum*momentum, which is float32. The direction of a bad step is 0.
struct MomentumArrays {
  TensorView grad, momentum, direction;
};
void momentum_update(ThreadPool& pool, const TensorView& numbers, const MomentumArrays& update);

// weight -= rate*direction + shrink*weight with rate = learning_rate*scale and shrink = learning_rate*decay,
// products in double that are rounded once, and squares as above; direction is float32.
struct DirectionArrays {
  TensorView direction, weight;
  TensorView squares;  // [1] f64
};
struct DirectionFactors {
  double scale, decay;
};
void direction_update(ThreadPool& pool, const TensorView& numbers, const DirectionFactors& factors,
                      const DirectionArrays& update);

}  // namespace switchyard
