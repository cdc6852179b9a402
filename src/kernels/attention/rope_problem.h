// The kernels behind rope.h, of every device. Internal to kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/rope.h"

namespace switchyard {

// RopeArgs on a CPU, with strides in elements.
struct RopeProblem {
  DType dtype;
  const void* x;
  void* y;
  std::int64_t heads;
  std::int64_t dim;
  std::int64_t token_stride;
  std::int64_t head_stride;
  const float* cos;
  const float* sin;
  bool interleaved;
  bool inverse;
};

// Tokens [begin, end).
using RopeTokens = void(const RopeProblem&, std::int64_t begin, std::int64_t end);

namespace ref {
RopeTokens rope;
}  // namespace ref
namespace cpu {
RopeTokens rope_avx512, rope_avx2;
}  // namespace cpu
namespace gpu {
void rope(const RopeArgs& args);
}  // namespace gpu

}  // namespace switchyard
