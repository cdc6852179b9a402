// One layer of a decoder: norm, attention, norm, and an MLP or experts.
#pragma once

#include <optional>

#include "models/blocks/layers.h"
#include "moe/block.h"

namespace switchyard {

// The step and the batch rows that a call computes, for random routing.
struct DrawnRows {
  std::int64_t step = 0, first_row = 0;
};

struct LayerOutput {
  Array x;                       // [B,S,M], laid out as the layer's input
  std::optional<MoeOutput> moe;  // set for a layer with experts
};

// Runs layer number `layer` on x [B,S,M].
LayerOutput decoder_layer(const LayerCall& call, const Array& x, std::int64_t layer, const DrawnRows& rows);

// A MoE layer's weights, and the output of its shared experts, which every token gets in addition to its
// routed experts'. x [B,S,M] is what the experts take.
MoeWeights moe_weights(const LayerCall& call);
Array shared_experts(const LayerCall& call, const Array& x);

}  // namespace switchyard
