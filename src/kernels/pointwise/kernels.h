// The arguments of the room's small ops as their tables take them,
// and the GPU's implementations. Internal to kernels/pointwise.
#pragma once

#include "kernels/pointwise/rms_norm.h"
#include "kernels/pointwise/round_to_e5m2.h"

namespace switchyard {

struct SumOverDimArgs {
  TensorView x;
  std::size_t dim;
  TensorView out;
};

struct StridedCopyArgs {
  TensorView from, to;
};

namespace gpu {
void round_to_e5m2(const RoundToE5m2Args& args);
void sum_over_dim(const SumOverDimArgs& args);
void strided_copy(const StridedCopyArgs& args);
void rms_norm(const RmsNormArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);
}  // namespace gpu

}  // namespace switchyard
