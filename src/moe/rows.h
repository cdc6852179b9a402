// Rows sorted by expert: the plan (the place of each assignment),
// and the differentiable moves between token order and sorted order.
//
// Index arrays (i32) are data: they are never differentiated and never recomputed. Row arrays are ragged:
// they hold exactly the rows of this rank.
#pragma once

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// The rows that each expert may keep: all, or those left after dropping under a buffer of `capacity` rows for
// the experts [0, sizes) of one rank. counts[source][expert]; the kept counts have the same shape. fair:
// every expert keeps the same fraction (largest remainder, ties to the lower expert), its earliest rows.
// prefix: rows in (source, expert) order are kept until the buffer is full.
std::vector<std::vector<std::int64_t>> keep_rows(const std::vector<std::vector<std::int64_t>>& counts,
                                                 std::int64_t capacity, DropPolicy policy);
// Rows of the buffer of each of `ranks` ranks for so many rows in all: ⌊factor · rows / P⌋, or -1 for
// dropless (factor <= 0).
std::int64_t buffer_rows(double factor, std::int64_t rows, std::int64_t ranks);

// Plan of the rows of experts [first, first + count), of `experts`, among `ids` [..., K]; -1 is no expert.
// Rows over buffer_rows(buffer_factor) of what the ids have are dropped. The number of rows is read back from
// the device ("rows per expert"), unless all experts are here and keep all rows: then a GPU takes R for all
// ids, and the rows behind those of the experts are nobody's.
struct RowPlan {
  Array rows;                   // i32 [R]: number of the assignment (token·K + slot) at each sorted position
  Array tokens;                 // i32 [R]: rows / K
  Array position;               // i32 [T·K]: sorted position of each assignment, -1 when it is not here
  Array sizes;                  // i32 [count]: rows per expert
  std::vector<double> dropped;  // dropped rows of each expert, [count]; empty when none can be dropped
  std::int64_t routed = 0;      // rows of these experts, dropped ones included
  std::int64_t assigned = 0;    // rows of all experts, dropped ones included
};
RowPlan plan_rows(Context& context, const Array& ids, std::int64_t first, std::int64_t count,
                  std::int64_t experts, double buffer_factor, DropPolicy policy);
// The plan for known numbers of kept rows: kept [count] i32, `rows` in all. The first `skipped` [count] i32
// rows of each expert, where given, are left out.
RowPlan plan_kept_rows(Context& context, const Array& ids, std::int64_t first, const Array& kept,
                       std::int64_t rows, const Array& skipped = {});
// Rows per expert among `ids`, [experts]; plans assume that [first, first + count) are the busy ones.
std::vector<std::int64_t> read_rows_per_expert(Context& context, const Array& ids, std::int64_t first,
                                               std::int64_t count, std::int64_t experts);
// Copies the values to the device, as i32 [values.size()].
Array host_indices(Context& context, const std::vector<std::int64_t>& values);

// x [..., M] (tokens flattened) -> rows [R,M]: one token gives up to K rows. Backward sums rows per token.
// The rows may be kept for backward.
Array rows_of_tokens(Context& context, const Array& x, const RowPlan& plan);
// Makes the rows of rows_of_tokens(), but backward gathers them again and does not keep them.
Array gather_rows(Context& context, const Array& x, const RowPlan& plan);
// weights f32 [..., K] -> [R].
Array gather_row_weights(Context& context, const Array& weights, const RowPlan& plan);
// rows [R,M] -> the sum of each token's rows, shaped like `like` [...,
// M] and laid out as `sharding`. Backward copies the output's gradient
// to each row. `weights` f32 [..., K], where given, multiply the rows.
Array combine_rows(Context& context, const Array& rows, const RowPlan& plan, const ArrayInfo& like,
                   const Sharding& sharding, const Array& weights = {});

// The sum of each token's rows [R,M], times w [T·K] where given: `token_shape` [..., M]. position [T·K].
Tensor sum_rows(Context& context, const Tensor& rows, const Tensor& position, const Shape& token_shape,
                const Tensor& w = {});

// The vectors of x [..., M] at `tokens` [R], times w [R] where given: [R,M].
Tensor fan_out(Context& context, const Tensor& x, const Tensor& tokens, const Tensor& w = {});

// Views x [..., M] as a matrix with rows of length M.
TensorView matrix_of(const Tensor& x);

}  // namespace switchyard
