// Cosines and sines of the rotary angles of tokens, as rope (kernels/attention/rope.h) reads them.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// A factor that grows with the position: 1 + factor · ln(1 + floor((position + offset) / positions)).
// factor 0: 1.
struct PositionGrowth {
  double factor = 0;
  double positions = 1;
  double offset = 1;

  double at(std::int32_t position) const {
    return factor == 0 ? 1.0 : 1 + factor * std::log(1 + std::floor((position + offset) / positions));
  }
};

// cos[t, i] and sin[t, i] of the angle positions[t] * frequencies[i], times `amplitude` and growth at that
// position. Angles, cosines and sines are doubles, rounded once.
struct RopeTablesArgs {
  TensorView positions;                 // [tokens] i32, or more dims, without gaps
  std::span<const double> frequencies;  // [pairs], of the host; radians per position
  double amplitude = 1;
  TensorView cos, sin;  // [tokens, pairs] f32, or more dims, without gaps
  PositionGrowth growth = {};
};
void rope_tables(ThreadPool& pool, const RopeTablesArgs& args);

}  // namespace switchyard
