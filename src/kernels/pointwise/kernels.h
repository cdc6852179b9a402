// The arguments of the room's small ops as their tables take them,
// and the GPU's implementations. Internal to kernels/pointwise.
#pragma once

#include "kernels/pointwise/rms_norm.h"
#include "kernels/pointwise/round_to_e5m2.h"
#include "kernels/pointwise/sigmoid_gate.h"

namespace switchyard {

// soft_cap and clamp.
struct BoundArgs {
  float bound;
  TensorView x, out;
};
// `x`: what clamp was given, or what soft_cap made.
struct BoundBackwardArgs {
  float bound;
  TensorView x, dout, dx;
};

struct SumOverDimArgs {
  TensorView x;
  std::size_t dim;
  TensorView out;
};

struct StridedCopyArgs {
  TensorView from, to;
};

namespace gpu {
void soft_cap(const BoundArgs& args);
void soft_cap_backward(const BoundBackwardArgs& args);
void clamp(const BoundArgs& args);
void clamp_backward(const BoundBackwardArgs& args);
void round_to_e5m2(const RoundToE5m2Args& args);
void sum_over_dim(const SumOverDimArgs& args);
void strided_copy(const StridedCopyArgs& args);
void sigmoid_gate(const SigmoidGateArgs& args);
void sigmoid_gate_backward(const SigmoidGateBackwardArgs& args);
void rms_norm(const RmsNormArgs& args);
void rms_norm_backward(const RmsNormBackwardArgs& args);
}  // namespace gpu

}  // namespace switchyard
