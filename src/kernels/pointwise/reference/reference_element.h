// Element conversion of the scalar references: they read f32, bf16 or f64 arrays and compute in double.
#pragma once

#include <type_traits>

#include "core/dtype.h"

namespace switchyard::reference {

inline double to_double(double x) {
  return x;
}
inline double to_double(float x) {
  return static_cast<double>(x);
}
inline double to_double(bfloat16 x) {
  return static_cast<double>(static_cast<float>(x));
}

template <typename T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return bfloat16(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

}  // namespace switchyard::reference
