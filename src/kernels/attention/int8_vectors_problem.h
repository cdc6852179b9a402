// What the implementations of to_int8 and from_int8 are given (internal to kernels/).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

inline constexpr float kLargestInt8 = 127;  // of either sign

// What Int8VectorsArgs holds, with strides in elements.
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
using Int8VectorsRun = void(const Int8VectorsProblem&, std::int64_t begin, std::int64_t end);

namespace cpu {
Int8VectorsRun to_int8_avx512;
Int8VectorsRun to_int8_avx2;
Int8VectorsRun from_int8_avx512;
Int8VectorsRun from_int8_avx2;
}  // namespace cpu
namespace ref {
Int8VectorsRun to_int8;
Int8VectorsRun from_int8;
}  // namespace ref

}  // namespace switchyard
