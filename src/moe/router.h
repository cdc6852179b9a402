// The router: scores, choice of experts, and weights.
#pragma once

#include "autograd/op.h"
#include "kernels/moe/route.h"
#include "moe/moe.h"

namespace switchyard {

// Gate logits f32 [B,S,E] of x [B,S,M], laid out like x's tokens, with E whole.
Array gate_logits(Context& context, const MoeExecution& execution, const Array& x, const MoeWeights& weights);

// Chooses K experts a token and their weights. `step`, `layer` and `first_row`, the place of these tokens'
// first row in the batch of that step, matter to random routing only. The decision is never recomputed by
// remat. `replayed`, where defined, is this rank's block i32 [B,S,K], of the host or of the device, of
// choices made elsewhere: -1 first where the router is to choose for a token, kUnusedChoice
// (kernels/moe/route.h) for a slot that goes to no expert; their weights are those of these logits.
// `segments`, where defined, are this rank's, i32 [B,S] on the device: tokens of segment 0 choose no expert.
Routing route(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
              std::int64_t step, std::int64_t layer, std::int64_t first_row = 0, const Tensor& replayed = {},
              const Tensor& segments = {});

// The router's own choices for the same input, as route() would make them: this rank's block i32 [B,S,K], on
// the device. Not differentiated.
Tensor choices_of_router(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
                         std::int64_t step, std::int64_t layer, std::int64_t first_row);

// The rule by which the kernel chooses (kernels/moe/route.h).
RoutingRule routing_rule(const MoeConfig& config);

}  // namespace switchyard
