// The gated delta net as a block of a decoder layer, in attention's place.
#pragma once

#include "models/blocks/layers.h"

namespace switchyard {

// x [B,S,M] in the layout of block inputs -> [B,S,M] alike (Yang et al. 2024; Qwen3-Next's form). A split
// sequence is gathered: every rank of its axes scans all of it, over its own batch and heads.
Array gated_delta_net(const LayerCall& call, const Array& x);

}  // namespace switchyard
