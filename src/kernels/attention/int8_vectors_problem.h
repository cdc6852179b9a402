// The kernels behind int8_vectors.h, of every device. Internal to kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/int8_vectors.h"

namespace switchyard {

inline constexpr float kLargestInt8 = 127;  // of either sign

// Int8VectorsArgs on a CPU, with strides in elements.
struct Int8VectorsProblem {
  struct Strides {
    std::int64_t token, head;
    std::int64_t at(std::int64_t t, std::int64_t h) const { return t * token + h * head; }
  };
  DType dtype;  // of x
  std::int64_t heads, dim;
  void* x;
  std::int8_t* values;
  float* scales;
  Strides of_x, of_values, of_scales;
};

// Tokens [begin, end).
using Int8VectorsKernel = void(const Int8VectorsProblem&, std::int64_t begin, std::int64_t end);

namespace ref {
Int8VectorsKernel to_int8, from_int8;
}  // namespace ref
namespace cpu {
Int8VectorsKernel to_int8_avx512, to_int8_avx2, from_int8_avx512, from_int8_avx2;
}  // namespace cpu
namespace gpu {
void to_int8(const Int8VectorsArgs& args);
void from_int8(const Int8VectorsArgs& args);
}  // namespace gpu

}  // namespace switchyard
