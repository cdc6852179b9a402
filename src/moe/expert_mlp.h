// The experts' MLP on rows sorted by expert: two grouped products, the activation times the routing weight, a
// third.
//
// The weight of a row is applied to its activation before the down projection, so that neither the down
// output is needed for the gradient of the weights nor a weighted copy of the rows for that of wo.
#pragma once

#include <functional>

#include "moe/rows.h"

namespace switchyard {

// Chunk c of N of x: columns [c·M/N, (c+1)·M/N) of its last dim. Asked for once a chunk, in order.
using ChunkOf = std::function<Array(std::int64_t chunk)>;

// The experts' MLP, to rows [R,M] sorted by expert, of the tokens x [..., M] that the plan names, or, where
// the plan has sizes alone, of the rows x [R,M]. row_weights [R] f32, where defined, scale each row's
// activation, and its bias of wo. `local`: wi [G,M,H] and wo [G,H,M] of this rank's experts, where H is split
// the result is a partial sum over its axes. The up projections of several chunks add up in float32, each as
// soon as its x is there. Kept for backward: x and the gate and up pre-activations.
Array expert_mlp(Context& context, const MoeConfig& config, const ChunkOf& x, std::int64_t chunks,
                 const RowPlan& plan, const Array& row_weights, const MoeWeights& local);

// silu(gate) ⊙ up ⊙ weight of the row; weights f32 have one element per row of gate [..., H].
Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights);

}  // namespace switchyard
