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
// which there must be as many, and sum(kept) = R. On a GPU, where nobody waits to learn the sum, it may be
// less: the rows behind those of the experts name assignment 0, which no position answers.
struct PlanRowsArgs {
  TensorView ids;  // [..., K]; -1: no expert
  std::int64_t first = 0;
  TensorView kept;          // [G]
  TensorView assignments;   // [R]: assignment of each row
  TensorView tokens;        // [R]: its token, assignments / K
  TensorView position;      // [T·K]: row of each assignment, -1: none
  TensorView skipped = {};  // [G]; undefined: none
};
void plan_rows(ThreadPool& pool, const PlanRowsArgs& args);

// The rows of an expert for a sequence with so many assignments, under a capacity factor above 0.
constexpr std::int64_t places_of(std::int64_t assignments, std::int64_t experts, double factor) {
  const double places = static_cast<double>((assignments + experts - 1) / experts) * factor;
  return static_cast<std::int64_t>(places > factor ? places : factor);
}

// Gives the assignments of each sequence rows in the order of their numbers: places_of() the assignments that
// the sequence has, of which C are enough for all (CHECKed where the host has the ids), or C where `factor`
// is 0. Assignments, tokens and rows are numbered over the whole views.
struct PlanPlacesArgs {
  TensorView ids;          // [B,S,K], each in [0, E), or -1: no expert
  TensorView assignments;  // [E,B,C]: assignment of each row, -1: none
  TensorView tokens;       // [E,B,C]: its token, assignments / K, -1: none
  TensorView position;     // [B,S,K]: row of each assignment, -1 where it found or needs none
  TensorView dropped;      // [E]: assignments that found no row
  double factor = 0;       // capacity_factor
};
void plan_places(ThreadPool& pool, const PlanPlacesArgs& args);

}  // namespace switchyard
