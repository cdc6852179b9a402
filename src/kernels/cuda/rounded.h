// Rounded: a float whose operators round each result to nearest, where nvcc would join a product and a sum
// into one operation. So a kernel has the bits of the same arithmetic on the host.
#pragma once

#include <cmath>
#include <type_traits>

#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

GPU_HOST_FUNCTION constexpr float rounded_product(float x, float y) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fmul_rn(x, y);
#endif
  return x * y;
}
GPU_HOST_FUNCTION constexpr float rounded_difference(float x, float y) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fsub_rn(x, y);
#endif
  return x - y;
}
GPU_HOST_FUNCTION constexpr float rounded_addition(float x, float y) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fadd_rn(x, y);
#endif
  return x + y;
}
GPU_HOST_FUNCTION constexpr float rounded_quotient(float x, float y) {
#if defined(__CUDA_ARCH__)
  if (!std::is_constant_evaluated()) return __fdiv_rn(x, y);
#endif
  return x / y;
}
GPU_HOST_FUNCTION float rounded_root(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// Its functions are constexpr because nvcc lets a kernel call a header's constexpr functions alone, and one
// of a template is constexpr where all that it calls is. Of the emulator's compiler: -ffp-contract=off is
// asked for where this is used (CMakeLists.txt).
struct Rounded {
  float value = 0;

  GPU_HOST_FUNCTION constexpr Rounded(float of) : value(of) {}
  GPU_HOST_FUNCTION constexpr explicit operator float() const { return value; }
};

GPU_HOST_FUNCTION constexpr Rounded operator*(Rounded x, Rounded y) {
  return rounded_product(x.value, y.value);
}
GPU_HOST_FUNCTION constexpr Rounded operator+(Rounded x, Rounded y) {
  return rounded_addition(x.value, y.value);
}
GPU_HOST_FUNCTION constexpr Rounded operator-(Rounded x, Rounded y) {
  return rounded_difference(x.value, y.value);
}
GPU_HOST_FUNCTION constexpr Rounded operator-(Rounded x) {
  return -x.value;
}
GPU_HOST_FUNCTION constexpr Rounded operator/(Rounded x, Rounded y) {
  return rounded_quotient(x.value, y.value);
}
GPU_HOST_FUNCTION constexpr bool operator<(Rounded x, Rounded y) {
  return x.value < y.value;
}
GPU_HOST_FUNCTION constexpr bool operator>(Rounded x, Rounded y) {
  return x.value > y.value;
}
GPU_HOST_FUNCTION constexpr bool operator<=(Rounded x, Rounded y) {
  return x.value <= y.value;
}
GPU_HOST_FUNCTION constexpr bool operator>=(Rounded x, Rounded y) {
  return x.value >= y.value;
}
GPU_HOST_FUNCTION Rounded square_root(Rounded x) {
  return rounded_root(x.value);
}

}  // namespace switchyard::gpu
