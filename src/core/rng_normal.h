// Ranges of normal numbers, for those who draw many of them, on the host or on a GPU.
#pragma once

#include <cstdint>
#include <span>

#include "core/rng.h"

namespace switchyard {

// A draw is sqrt(2) erfinv(u) for u uniform on [from, to), then no less than `least` and no more than `most`.
struct NormalRange {
  float from, to;
  float least, most;
};
NormalRange normal_range();                              // of rng_normal
NormalRange truncated_normal_range(float lo, float hi);  // of rng_truncated_normal

// Sets out[i] to the draw at index first + i.
void rng_fill_normal(RngKey key, std::uint64_t first, const NormalRange& range, std::span<float> out);

}  // namespace switchyard
