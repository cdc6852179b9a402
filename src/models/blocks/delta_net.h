// The gated delta net, a part of a decoder layer that replaces attention.
#pragma once

#include "models/blocks/layers.h"

namespace switchyard {

// Maps x [B,S,M] in the layout of block inputs to [B,S,M] in that layout (Yang et al. 2024; Qwen3-Next). A
// split sequence is gathered: every rank along its axes scans it whole, for its own batch and heads.
Array gated_delta_net(const LayerCall& call, const Array& x);

}  // namespace switchyard
