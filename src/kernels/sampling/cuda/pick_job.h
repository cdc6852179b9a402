// Job: the argument of the kernels of pick_tokens.cu, and the ways in which a search for a token begins.
#pragma once

#include <limits>

#include "kernels/sampling/cuda/token_search.h"

namespace switchyard::gpu {

constexpr int kPiece = 4096;  // logits of a block
constexpr int kJobs = 2, kPickJob = 0, kLogProbJob = 1;
constexpr std::int32_t kNone = 0x7fffffff;
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Numbers of a piece's logits.
struct PieceNumbers {
  float top, top_as_given;  // the largest one, with changes and without
  std::int32_t bad;         // the first one that is not finite
};

// Job is the argument of the three kernels.
struct Job {
  const float* logits;  // [n,width]
  std::int64_t width;
  const PackedPick* picks;
  const std::uint64_t* lists;  // what the places of PackedPick count from
  float* changed;              // [picks,width], of picks with changes
  PieceNumbers* numbers;       // [picks,pieces]
  std::uint64_t* sums;         // [picks,kJobs,kBins], by the first digit
  std::uint64_t* log_sums;     // [picks]
  PickedToken* out;            // [picks]
  std::int32_t pieces;

  GPU_FUNCTION const float* given(const PackedPick& pick) const { return logits + pick.row * width; }
  GPU_FUNCTION const float* of_job(const PackedPick& pick, int row, int job) const {
    return job == kPickJob && pick.changes != 0 ? changed + row * width : given(pick);
  }
  GPU_FUNCTION std::uint64_t* sums_of(int row, int job) const {
    return sums + (static_cast<std::int64_t>(row) * kJobs + job) * kBins;
  }
};

// The larger one of numbers; a NaN is less than any.
GPU_FUNCTION float larger(float x, float than) {
  return x > than ? x : than;
}

// The largest logit of a row, 0 where it is -0. All threads of the block call it; `scratch`: a number a warp.
GPU_FUNCTION float top_of_row(const Job& p, int row, int job, float* scratch) {
  const PieceNumbers* const numbers = p.numbers + static_cast<std::int64_t>(row) * p.pieces;
  float top = kNever;
  for (std::int32_t i = thread_index(); i < p.pieces; i += thread_count())
    top = larger(job == kPickJob ? numbers[i].top : numbers[i].top_as_given, top);
  top = warp_max(top);
  barrier();
  if (thread_index() % kWarp == 0) scratch[thread_index() / kWarp] = top;
  barrier();
  for (int warp = 0; warp < thread_count() / kWarp; ++warp) top = larger(scratch[warp], top);
  return top + 0.0f;
}

GPU_FUNCTION Weighing counting() {
  Weighing w;
  w.counts = true;
  return w;
}
// `by_id`, `least` and the factor are those of the draw.
GPU_FUNCTION Weighing drawing(const PackedPick& pick, float top) {
  Weighing w;
  w.by_id = pick.order == PickOrder::by_id;
  w.factor = pick.factor;
  w.least = pick.least;
  w.top = top;
  w.scale = pick.weight_bits;
  return w;
}
GPU_FUNCTION Weighing sharing(const PackedPick& pick, float top) {
  Weighing w = drawing(pick, top);
  w.factor = pick.share_factor;
  w.least = static_cast<double>(kNever);
  return w;
}
// How a job's search begins.
GPU_FUNCTION Weighing first_weighing(const PackedPick& pick, int job, float top) {
  if (job == kLogProbJob || pick.top_k > 0) return counting();
  return pick.share < 1 ? sharing(pick, top) : drawing(pick, top);
}

}  // namespace switchyard::gpu
