// Cosines and sines of the rotary angles of tokens, as rope (kernels/rope.h) reads them.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// cos[t, i] and sin[t, i] of the angle positions[t] * frequencies[i], times `amplitude`. Angles, cosines and
// sines are doubles, rounded once.
struct RopeTablesArgs {
  TensorView positions;                 // [tokens] i32, or more dims, without gaps
  std::span<const double> frequencies;  // [pairs], of the host; radians per position
  double amplitude = 1;
  TensorView cos, sin;  // [tokens, pairs] f32, or more dims, without gaps
};
void rope_tables(ThreadPool& pool, const RopeTablesArgs& args);

}  // namespace switchyard
