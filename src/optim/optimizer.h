// Optimizers that update every weight separately: AdamW, Adam in Paxml's form, and plain gradient descent.
//
// A parameter's update depends only on its own weight, gradient and state, so any contiguous range of
// elements (a shard, a slice of one over `data`) can be updated alone. Arithmetic is in float32; weights and
// state are rounded once when they are stored, and the update uses the moments before that rounding. Results
// do not depend on the thread count.
//
// With g = grad * grad_scale, t = step + 1, and decay dropped where it does not apply:
//   adamw     m = b1*m + (1-b1)*g,  v = b2*v + (1-b2)*g*g,
//             w -= lr * ( m/(1-b1^t) / (sqrt(v/(1-b2^t) + eps_root) + eps) + weight_decay*w )
//             with `nesterov`, m/(1-b1^t) becomes b1*m/(1-b1^(t+1)) + (1-b1)*g/(1-b1^t) (Dozat 2016)
//   adam_pax  the same with b replaced by b*(1-b^(t-1))/(1-b^t)
//             (Shazeer and Stern 2018, section 7.1) and no further correction;
//             it differs from adamw in rounding only
//   sgd       w -= lr * g
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/optimizer/weight_update.h"

namespace switchyard {

struct OptimizerConfig {
  std::string type = "adamw";  // opt_type: "adamw", "adam_pax" or "sgd"
  double b1 = 0.9;
  double b2 = 0.95;
  double eps = 1e-8;
  double eps_root = 0;
  double weight_decay = 0.1;
  bool nesterov = false;        // adamw only; for the parameters that Muon does not update
  DType mu_dtype = DType::f32;  // first moment's type; the caller resolves an unset key to the weight's dtype
};

// A range of weights to update. Weight and gradient are float32 or bfloat16 and have equally many elements.
struct OptimizerRange {
  TensorView weight, grad;
  std::span<const Tensor> state;  // the state that init returned for this range
  TensorView squares;             // [1] f64: receives the sum of squares of the new weights
  bool decay = true;              // false for parameters without weight decay
};

// The numbers as kernels take them, f32 [kUpdateNumbers], in `memory`.
Tensor numbers_in(const Memory& memory, const UpdateNumbers& numbers);

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Throws Error(usage) for another type, a moment decay outside [0, 1), or a negative epsilon.
  static std::unique_ptr<Optimizer> make(const OptimizerConfig& config);

  // Zero state for a range of `count` weights, in `memory`: for the Adams the first moment [count] in
  // mu_dtype and the second [count] in the weight's dtype, for sgd nothing.
  virtual std::vector<Tensor> init(const Memory& memory, DType weight_dtype, std::int64_t count) const = 0;

  // Returns the numbers that the kernels compute with in step `step`, counted
  // from 0, with grad_scale 1.
  virtual AdamTerms terms_of(std::int64_t step, double learning_rate) const = 0;

  // Updates ranges of weights in place by `numbers`, UpdateNumbers where the weights are
  // (kernels/optimizer/update_numbers.h). The sums of squares equal those of sums_of_squares
  // (kernels/pointwise/elementwise.h); the update computes them without another pass. Nothing changes where
  // the numbers say that the step is bad.
  virtual void update(ThreadPool& pool, const TensorView& numbers,
                      std::span<const OptimizerRange> ranges) const = 0;
};

}  // namespace switchyard
