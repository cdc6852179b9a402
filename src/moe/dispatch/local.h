// The experts of this rank, on tokens that are here: the whole of local dispatch, and what a ring does once
// it has its tokens.
#pragma once

#include "moe/dispatch/dispatch.h"
#include "moe/expert_mlp.h"

namespace switchyard {

// Tokens for the experts of this rank: those of a ring, or its own.
struct TokensHere {
  Sharding layout;     // of the tokens [B,S,M]
  Array ids, weights;  // their routing [B,S,K]
  ChunkOf x;           // [B,S,M / num_moe_emb_chunks]; each pass asks for each chunk once, in order
};

// Plans the rows whose experts are this rank's, runs the experts on exactly those and sums them per token: y
// is laid out as the tokens and a partial sum over the expert axes, or after several passes laid out as the
// call says.
DispatchResult run_local_experts(Context& context, const DispatchCall& call, const TokensHere& tokens);

}  // namespace switchyard
