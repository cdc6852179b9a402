// The MoE block: router -> dispatch -> experts -> combine.
#pragma once

#include "autograd/context.h"
#include "moe/moe.h"

namespace switchyard {

struct MoeOutput {
  Array y;             // [B,S,M], laid out like x
  Array balance_loss;  // [] f32, whole; undefined when its weight is 0
  Routing routing;     // for verify and inspection
  Array logits;        // f32 [B,S,E]
  LayerLoad load;
};

// False on ranks whose block of tokens [B,S,...] in this sharding repeats another rank's.
bool is_first_of_repeats(const Context& context, const Sharding& tokens);

// Error(usage) when num_moe_token_chunks does not divide the `length` tokens of a sequence on one rank, or
// num_moe_emb_chunks does not divide the `width` of a token.
void check_chunks(const MoeExecution& execution, std::int64_t length, std::int64_t width);

// Runs the block on x [B,S,M]; segments i32 [B,S] (0 = padding, which gets zeros: it chooses no expert). The
// step, the layer and the place of x's first row in that step's batch matter to random routing only.
MoeOutput moe_block(Context& context, const MoeConfig& config, const MoeExecution& execution,
                    const MoeWeights& weights, const Array& x, const Array& segments, std::int64_t step,
                    std::int64_t layer, std::int64_t first_row = 0);

}  // namespace switchyard
