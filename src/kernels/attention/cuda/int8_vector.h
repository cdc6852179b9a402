// A vector in 8 bits, made by a warp: the bits of to_int8() on the CPU.
#pragma once

#include "kernels/attention/int8_vectors_problem.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

// values = the numbers of `from` over the scale, which it returns, rounded.
template <typename T>
GPU_FUNCTION float vector_to_int8(const T* from, std::int8_t* values, std::int64_t dim) {
  const std::int64_t lane = thread_index() % kWarp;
  float largest = 0;
  bool finite = true;
  for (std::int64_t d = lane; d < dim; d += kWarp) {
    const float size = fabsf(to_float(from[d]));
    finite = finite && size < INFINITY;
    largest = size > largest ? size : largest;
  }
  largest = ballot(!finite) != 0 ? NAN : warp_max(largest);
  const float scale = largest / kLargestInt8;
  for (std::int64_t d = lane; d < dim; d += kWarp) {
    float value = scale > 0 ? rintf(to_float(from[d]) / scale) : 0.0f;
    value = value > kLargestInt8 ? kLargestInt8 : value < -kLargestInt8 ? -kLargestInt8 : value;
    values[d] = static_cast<std::int8_t>(value);
  }
  return scale;
}

}  // namespace switchyard::gpu
