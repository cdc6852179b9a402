// Rows sorted by expert: the plan (who goes where), and the differentiable moves between token order and
// sorted order.
//
// Index arrays (i32) are data, never differentiated and never recomputed. Row arrays are ragged: they hold
// exactly the rows of this rank. The weight of a row is applied to its activation before the down projection,
// so that neither the down output is needed for the gradient of the weights nor a weighted copy of the rows
// for that of wo.
#pragma once

#include <functional>

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// How many rows each expert may keep: all, or what is left after dropping under a buffer of `capacity` rows
// for the experts [0, sizes) of one rank. counts[source][expert]; returns the kept counts in the same shape.
// fair: every expert keeps the same fraction (largest remainder, ties to the lower expert), earliest rows
// first. prefix: rows in (source, expert) order are kept until the buffer is full.
std::vector<std::vector<std::int64_t>> keep_rows(const std::vector<std::vector<std::int64_t>>& counts,
                                                 std::int64_t capacity, DropPolicy policy);
// ⌊factor · tokens · K / P⌋, or -1 for dropless (factor <= 0).
std::int64_t buffer_rows(double factor, std::int64_t tokens, std::int64_t slots, std::int64_t ranks);

// Plan of the rows of experts [first, first + count), of `experts`, among `ids` [..., K]; rows are dropped
// beyond `capacity` (-1: none).
struct RowPlan {
  Array rows;      // i32 [R]: row number (token·K + slot) at each sorted position
  Array tokens;    // i32 [R]: rows / K
  Array position;  // i32 [T·K]: sorted position of each row, -1 where it is not here
  Array sizes;     // i32 [count]: rows per expert
  Array dropped;   // i32 [count]
};
RowPlan plan_rows(Context& context, const Array& ids, std::int64_t first, std::int64_t count,
                  std::int64_t experts, std::int64_t capacity, DropPolicy policy);

// x [..., M] (tokens flattened) -> rows [R,M]: one token feeds up to K rows. Backward sums them back per
// token.
Array gather_rows(Context& context, const Array& x, const RowPlan& plan);
// weights f32 [..., K] -> [R].
Array gather_row_weights(Context& context, const Array& weights, const RowPlan& plan);
// rows [R,M] -> the sum of each token's rows, shaped like `like` [..., M] and laid out as `sharding`.
// Backward is a fan-out gather of the output gradient. `weights` f32 [..., K], where given, multiply the
// rows.
Array combine_rows(Context& context, const Array& rows, const RowPlan& plan, const ArrayInfo& like,
                   const Sharding& sharding, const Array& weights = {});

// Chunk c of N of x: columns [c·M/N, (c+1)·M/N) of its last dim. Asked for once a chunk, in order.
using ChunkOf = std::function<Array(std::int64_t chunk)>;

// The experts' MLP, to rows [R,M] sorted by expert, of the tokens x [..., M] that the plan names, or, where
// the plan has sizes alone, of the rows x [R,M]. row_weights [R] f32, where defined, scale each row's
// activation. wi [G,M,H] and wo [G,H,M] are this rank's experts. The up projections of several chunks add up
// in float32, each as soon as its x is there. Kept for backward: x and the gate and up pre-activations.
Array expert_mlp(Context& context, const ChunkOf& x, std::int64_t chunks, const RowPlan& plan,
                 const Array& row_weights, const Array& wi_0, const Array& wi_1, const Array& wo);

// silu(gate) ⊙ up ⊙ weight of the row; weights f32 have one element per row of gate [..., H].
Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights);

}  // namespace switchyard
