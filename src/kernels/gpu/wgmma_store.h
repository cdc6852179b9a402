// What becomes of a block's sums, as wgmma leaves them in the threads of a warpgroup.
#pragma once

#include "kernels/gpu/product_parts.h"
#include "kernels/gpu/wgmma.h"

namespace switchyard::gpu {

// Stores the sums of 16 rows from `warp_row` on, which this warp has, with bias, and added where that is
// wanted.
template <typename C, int columns>
GPU_FUNCTION void store_sums(const Product& p, const Part& part, std::int64_t warp_row,
                             const float (&sums)[columns / 2]) {
  C* const c = static_cast<C*>(p.c) + part.c_offset;
  const bfloat16* const bias =
      p.bias == nullptr ? nullptr : static_cast<const bfloat16*>(p.bias) + part.bias_offset;
  const int lane = thread_index() % kWarp;
  const bool pairs = p.ldc % 2 == 0 && reinterpret_cast<std::uintptr_t>(c) % (2 * sizeof(C)) == 0;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = warp_row + lane / 4 + half * 8;
    if (row >= part.rows_end) continue;
    GPU_UNROLL
    for (int j = 0; j < columns / 8; ++j) {
      const std::int64_t column = part.column + j * 8 + lane % 4 * 2;
      if (column >= p.n) continue;
      C* const to = c + row * p.ldc + column;
      float values[2] = {sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]};
      const bool both = column + 1 < p.n;
      if (bias != nullptr) {
        values[0] += to_float(bias[column]);
        if (both) values[1] += to_float(bias[column + 1]);
      }
      if (p.accumulate) {
        values[0] += to_float(to[0]);
        if (both) values[1] += to_float(to[1]);
      }
      if (both && pairs) {
        *reinterpret_cast<Vector<C, 2>*>(to) = {from_float<C>(values[0]), from_float<C>(values[1])};
      } else {
        to[0] = from_float<C>(values[0]);
        if (both) to[1] = from_float<C>(values[1]);
      }
    }
  }
}

}  // namespace switchyard::gpu
