// What rope's implementations are given (internal to kernels/).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

// What RopeArgs holds, with strides in elements.
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

namespace cpu {
RopeTokens rope_avx512;
RopeTokens rope_avx2;
}  // namespace cpu

}  // namespace switchyard
