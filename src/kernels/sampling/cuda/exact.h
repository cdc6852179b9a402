// Double arithmetic whose operations are rounded one by one as they are written, as the host's are, and sums
// of 64-bit whole numbers by many threads.
#pragma once

#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)

GPU_FUNCTION double double_sum(double x, double y) {
  return __dadd_rn(x, y);
}
GPU_FUNCTION double double_difference(double x, double y) {
  return __dsub_rn(x, y);
}
GPU_FUNCTION double double_product(double x, double y) {
  return __dmul_rn(x, y);
}
GPU_FUNCTION double double_quotient(double x, double y) {
  return __ddiv_rn(x, y);
}
// x * y + z, rounded once.
GPU_FUNCTION double double_fma(double x, double y, double z) {
  return __fma_rn(x, y, z);
}
GPU_FUNCTION std::uint64_t bits_of_double(double x) {
  return static_cast<std::uint64_t>(__double_as_longlong(x));
}
GPU_FUNCTION double double_of_bits(std::uint64_t x) {
  return __longlong_as_double(static_cast<long long>(x));
}
GPU_FUNCTION void atomic_add_long(std::uint64_t* to, std::uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}
GPU_FUNCTION void atomic_least(std::int32_t* of, std::int32_t value) {
  atomicMin(of, value);
}

#else

inline double double_sum(double x, double y) {
  return x + y;
}
inline double double_difference(double x, double y) {
  return x - y;
}
inline double double_product(double x, double y) {
  return x * y;
}
inline double double_quotient(double x, double y) {
  return x / y;
}
inline double double_fma(double x, double y, double z) {
  return std::fma(x, y, z);
}
inline std::uint64_t bits_of_double(double x) {
  return std::bit_cast<std::uint64_t>(x);
}
inline double double_of_bits(std::uint64_t x) {
  return std::bit_cast<double>(x);
}
inline void atomic_add_long(std::uint64_t* to, std::uint64_t value) {
  *to += value;
}
inline void atomic_least(std::int32_t* of, std::int32_t value) {
  if (value < *of) *of = value;
}

#endif

}  // namespace switchyard::gpu
