// Planning where rows stand when they are sorted by expert, and which rows find room.
//
// A row is one (token, slot) pair; row t·K+k is slot k of token t, and ids[t,k] is its expert. All views are
// int32 without gaps. Bit-identical for any number of threads.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// counts[e] = the rows whose expert is first + e. ids [...], counts [experts]. Other ids are passed over.
void count_ids(ThreadPool& pool, const TensorView& ids, std::int64_t first, const TensorView& counts);

// The rows of experts [first, first + G), sorted by expert and within an expert by their number. Expert
// first + e passes over its first skipped[e] rows and keeps the next kept[e], of which there must be as many,
// and sum(kept) = R.
struct PlanRowsArgs {
  TensorView ids;  // [..., K]
  std::int64_t first = 0;
  TensorView kept;          // [G]
  TensorView rows;          // [R]: row at each sorted position
  TensorView tokens;        // [R]: rows / K
  TensorView position;      // [T·K]: sorted position of each row, -1 where it is not here
  TensorView skipped = {};  // [G]; undefined: none
};
void plan_rows(ThreadPool& pool, const PlanRowsArgs& args);

// Places for the rows of each sequence: C for every expert. Rows are admitted token by token, slot by slot.
// Rows, tokens and places are numbered over the whole views.
struct PlanPlacesArgs {
  TensorView ids;       // [B,S,K], each in [0, E), or -1: no expert
  TensorView rows;      // [E,B,C]: row in each place, -1 where it is empty
  TensorView tokens;    // [E,B,C]: rows / K, -1 where it is empty
  TensorView position;  // [B,S,K]: place of each row, -1 where it found or needs none
  TensorView dropped;   // [E]: rows that found no place
};
void plan_places(ThreadPool& pool, const PlanPlacesArgs& args);

}  // namespace switchyard
