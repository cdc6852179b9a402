// Stores a block's sums, as wgmma leaves them in the threads of a warpgroup.
#pragma once

#include "kernels/cuda/wgmma.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {

// Transposes four registers among four neighbouring lanes: lane i gets register i of each lane, in order.
GPU_FUNCTION void transpose_among_four(std::uint32_t (&x)[4]) {
  const int lane = thread_index() % 4;
  for (int by = 1; by < 4; by *= 2) {
    // Pairs of registers that differ in bit `by`: one of each goes to the lane that differs in it.
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((i & by) != 0) continue;
      const bool upper = (lane & by) != 0;
      const std::uint32_t other = shuffle_xor(upper ? x[i] : x[i | by], by);
      (upper ? x[i] : x[i | by]) = other;
    }
  }
}

// The sums as bfloat16, 16 bytes a thread, where rows are aligned to that and nothing is added.
template <int columns>
GPU_FUNCTION void store_wide(const DeviceProduct& p, const Part& part, bfloat16* c, std::int64_t warp_row,
                             const float (&sums)[columns / 2]) {
  const int lane = thread_index() % kWarp;
  GPU_UNROLL
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = warp_row + lane / 4 + half * 8;
    GPU_UNROLL
    for (int j = 0; j < columns / 8; j += 4) {
      std::uint32_t pairs[4];
      GPU_UNROLL
      for (int i = 0; i < 4; ++i)
        pairs[i] = rounded_pair(sums[(j + i) * 4 + half * 2], sums[(j + i) * 4 + half * 2 + 1]);
      transpose_among_four(pairs);
      const std::int64_t column = part.column + (j + lane % 4) * 8;
      if (row < part.rows_end && column < p.n)
        *reinterpret_cast<Vector<std::uint32_t, 4>*>(c + row * p.ldc + column) = {pairs[0], pairs[1],
                                                                                  pairs[2], pairs[3]};
    }
  }
}

// Stores the sums of 16 rows from `warp_row` on, which this warp has, with bias, and
// added where that is wanted.
template <typename C, int columns>
GPU_FUNCTION void store_sums(const DeviceProduct& p, const Part& part, std::int64_t warp_row,
                             const float (&sums)[columns / 2]) {
  C* const c = static_cast<C*>(p.c) + part.c_offset;
  const bfloat16* const bias =
      p.bias == nullptr ? nullptr : static_cast<const bfloat16*>(p.bias) + part.bias_offset;
  if constexpr (sizeof(C) == sizeof(bfloat16)) {
    const bool wide = bias == nullptr && !p.accumulate && p.n % 8 == 0 && p.ldc % 8 == 0 &&
                      reinterpret_cast<std::uintptr_t>(c) % 16 == 0;
    if (wide) return store_wide<columns>(p, part, c, warp_row, sums);
  }
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
