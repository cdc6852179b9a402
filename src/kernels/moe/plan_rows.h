// Plans the rows of a matrix that is sorted by expert: which assignment each row is for, and which
// assignments find room.
//
// Assignment t·K+k is the (token, expert) pair (t, ids[t,k]), the k-th choice of token t. All views are int32
// without gaps. Bit-identical for any number of threads.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// counts[e] = the number of assignments to expert first + e.
// ids [...], counts [experts]. Other ids are passed over.
void count_ids(ThreadPool& pool, const TensorView& ids, std::int64_t first, const TensorView& counts);

// Gives the assignments to experts [first, first + G) a row each, sorted by expert and within an expert by
// their number. Expert first + e passes over its first skipped[e] assignments and keeps the next kept[e], of
// which there must be as many, and sum(kept) = R.
struct PlanRowsArgs {
  TensorView ids;  // [..., K]
  std::int64_t first = 0;
  TensorView kept;          // [G]
  TensorView assignments;   // [R]: assignment of each row
  TensorView tokens;        // [R]: its token, assignments / K
  TensorView position;      // [T·K]: row of each assignment, -1: none
  TensorView skipped = {};  // [G]; undefined: none
};
void plan_rows(ThreadPool& pool, const PlanRowsArgs& args);

// Gives the assignments of each sequence rows, C for every expert, in the order of their numbers.
// Assignments, tokens and rows are numbered over the whole views.
struct PlanPlacesArgs {
  TensorView ids;          // [B,S,K], each in [0, E), or -1: no expert
  TensorView assignments;  // [E,B,C]: assignment of each row, -1: none
  TensorView tokens;       // [E,B,C]: its token, assignments / K, -1: none
  TensorView position;     // [B,S,K]: row of each assignment, -1 where it found or needs none
  TensorView dropped;      // [E]: assignments that found no row
};
void plan_places(ThreadPool& pool, const PlanPlacesArgs& args);

}  // namespace switchyard
