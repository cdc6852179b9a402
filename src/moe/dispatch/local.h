// Runs this rank's experts on tokens that it holds: all of local
// dispatch, and the part of the ring after it has gathered tokens.
#pragma once

#include "moe/dispatch/dispatch.h"
#include "moe/expert_mlp.h"

namespace switchyard {

// Tokens for this rank's experts: gathered ones (ring), or its own.
struct TokensHere {
  Sharding layout;     // sharding of the tokens [B,S,M]
  Array ids, weights;  // their routing [B,S,K]
  ChunkOf x;           // [B,S,M / num_moe_emb_chunks]; each pass asks for each chunk once, in order
};

// Plans the rows whose experts are on this rank, runs the experts on exactly those
// rows, and sums them per token. y is laid out as the tokens and is a partial sum
// over the expert axes; after several passes it is laid out as the call says.
DispatchResult run_local_experts(Context& context, const DispatchCall& call, const TokensHere& tokens);

}  // namespace switchyard
