// The GPU's implementations of the room's ops. They go token by token, in no chunks.
// Internal to kernels/delta_net.
#pragma once

#include "kernels/delta_net/causal_conv.h"
#include "kernels/delta_net/delta_gates.h"
#include "kernels/delta_net/gated_delta.h"

namespace switchyard::gpu {

void gated_delta(const GatedDeltaArgs& args);
void gated_delta_backward(const GatedDeltaBackwardArgs& args);
void delta_gates(const DeltaGatesArgs& args);
void delta_gates_backward(const DeltaGatesBackwardArgs& args);
void causal_conv(const CausalConvArgs& args);
void causal_conv_backward(const CausalConvBackwardArgs& args);

}  // namespace switchyard::gpu
