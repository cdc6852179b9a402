// Kernels whose blocks share the depth add and store four neighbours of a row of C at once.
#pragma once

#include "kernels/cuda/cluster_memory.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// Adds what the blocks of the cluster left at this place of their shared memory, in the order of blocks.
template <int parts>
GPU_FUNCTION Vector<float, 4> sum_of_parts(const float* place) {
  Vector<float, 4> of_parts[parts];
  GPU_UNROLL
  for (int r = 0; r < parts; ++r) of_parts[r] = read_of_block(place, r);
  Vector<float, 4> sum = of_parts[0];
  GPU_UNROLL
  for (int r = 1; r < parts; ++r) {
    GPU_UNROLL
    for (int e = 0; e < 4; ++e) sum.at[e] += of_parts[r].at[e];
  }
  return sum;
}

#endif

// Stores four neighbours of a row of C, of which the first `count` are there. `bias_at` says where in the
// bias the first one's number stands.
template <typename C>
GPU_FUNCTION void put_four(const DeviceProduct& p, C* to, std::int64_t bias_at, std::int64_t count,
                           const Vector<float, 4>& sums) {
  const bool at_once = count >= 4 && reinterpret_cast<std::uintptr_t>(to) % (4 * sizeof(C)) == 0;
  Vector<C, 4> values;
  GPU_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i >= count) continue;
    float value = sums.at[i];
    if (p.bias != nullptr) value += to_float(static_cast<const bfloat16*>(p.bias)[bias_at + i]);
    if (p.accumulate) value += to_float(to[i]);
    values.at[i] = from_float<C>(value);
    if (!at_once) to[i] = values.at[i];
  }
  if (at_once) *reinterpret_cast<Vector<C, 4>*>(to) = values;
}

// put_four() into a C of either type, `at` elements from its begin.
GPU_FUNCTION void put_four(const DeviceProduct& p, std::int64_t at, std::int64_t bias_at, std::int64_t count,
                           const Vector<float, 4>& sums) {
  if (p.c_dtype == DType::f32)
    put_four(p, static_cast<float*>(p.c) + at, bias_at, count, sums);
  else
    put_four(p, static_cast<bfloat16*>(p.c) + at, bias_at, count, sums);
}

}  // namespace switchyard::gpu
