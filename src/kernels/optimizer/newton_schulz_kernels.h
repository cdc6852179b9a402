// The kernels behind newton_schulz.h, of every device.
#pragma once

#include "core/tensor_view.h"

namespace switchyard {

struct NormalizeArgs {
  double eps;
  TensorView x;
};

// gram = linear I + cubic gram + quintic square
struct PolynomialArgs {
  float linear, cubic, quintic;
  TensorView square, gram;
};

namespace gpu {
void normalize_matrices(const NormalizeArgs& args);
void newton_schulz_polynomial(const PolynomialArgs& args);
}  // namespace gpu

}  // namespace switchyard
