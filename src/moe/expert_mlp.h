// The experts' MLP on rows sorted by expert: two grouped products,
// the activation times the routing weight, and a third product.
//
// A row's weight is applied to its activation before the down projection. So the gradient of the weights does
// not need the down output, and the gradient of wo does not need a weighted copy of the rows.
#pragma once

#include <functional>

#include "moe/rows.h"

namespace switchyard {

// Chunk c of N of x: columns [c·M/N, (c+1)·M/N) of the last dim. Each chunk is asked for once, in order.
using ChunkOf = std::function<Array(std::int64_t chunk)>;

// Applies the experts' MLP to rows [R,M] sorted by expert: those of the tokens x [..., M] that the plan
// names, or the rows x [R,M] where the plan has only sizes. row_weights [R] f32, where defined, scale each
// row's activation, and its bias of wo. `local`: wi [G,M,H] and wo [G,H,M] of this rank's experts; where H is
// split, the result is a partial sum over its axes. Up projections of several chunks are summed in float32,
// each as soon as its x is there. Keeps x and the gate and up pre-activations for backward.
Array expert_mlp(Context& context, const MoeConfig& config, const ChunkOf& x, std::int64_t chunks,
                 const RowPlan& plan, const Array& row_weights, const MoeWeights& local);

// silu(gate) ⊙ up ⊙ the row's weight; weights f32 have one element for each row of gate [..., H].
Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights);

}  // namespace switchyard
