// Elements of f32 or bf16 arrays as floats, for the scalar references.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard::ref {

inline float at(const void* x, DType dtype, std::int64_t i) {
  return dtype == DType::f32 ? static_cast<const float*>(x)[i]
                             : static_cast<float>(static_cast<const bfloat16*>(x)[i]);
}

inline void put(void* x, DType dtype, std::int64_t i, float value) {
  if (dtype == DType::f32) {
    static_cast<float*>(x)[i] = value;
  } else {
    static_cast<bfloat16*>(x)[i] = bfloat16(value);
  }
}

}  // namespace switchyard::ref
