// Pairs of bfloat16 in a register, the first in its lower half, and copies of less than 16 bytes into shared
// memory that go on while threads compute (cp.async).
#pragma once

#include "core/half.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/tiles.h"

namespace switchyard::gpu {

// Both halves of a register as `bits` (of 16).
constexpr std::uint32_t twice(std::uint32_t bits) {
  return bits << 16 | bits;
}

// The lower halves of two registers as a pair, and the upper ones.
GPU_FUNCTION std::uint32_t lower_halves(std::uint32_t x, std::uint32_t y) {
  return (x & 0xffffu) | y << 16;
}
GPU_FUNCTION std::uint32_t upper_halves(std::uint32_t x, std::uint32_t y) {
  return x >> 16 | (y & 0xffff0000u);
}

#if defined(__CUDACC__)

// a · b + c of each half, rounded once to nearest even.
GPU_FUNCTION std::uint32_t multiply_add_pairs(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

GPU_FUNCTION float float_of_half(std::uint32_t bits) {
  float result;
  asm("{ .reg .b16 low; cvt.u16.u32 low, %1; cvt.f32.f16 %0, low; }" : "=f"(result) : "r"(bits));
  return result;
}

// `bytes` bytes to shared memory, both addresses multiples of them. Groups as those of copy_async().
template <int bytes>
GPU_FUNCTION void copy_bytes_async(void* to, const void* from) {
  if constexpr (bytes == 16)
    copy_async(to, from, 16);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from), "n"(bytes)
                 : "memory");
}

#else

// Rounded twice, to float32 first: right where bfloat16 holds the result, as kernels use it.
inline std::uint32_t multiply_add_pairs(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const auto half = [&](int which) {
    return from_float<bfloat16>(std::fmaf(tiles_detail::half_of(a, which), tiles_detail::half_of(b, which),
                                          tiles_detail::half_of(c, which)))
        .bits;
  };
  return tiles_detail::pair(half(0), half(1));
}

inline float float_of_half(std::uint32_t bits) {
  return half_to_float(static_cast<std::uint16_t>(bits));
}

template <int bytes>
void copy_bytes_async(void* to, const void* from) {
  emulator::copy_later(to, from, bytes);
}

#endif

}  // namespace switchyard::gpu
