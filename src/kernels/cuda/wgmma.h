// Hopper's instructions for matrix products (PTX ISA: wgmma): 128 threads, a warpgroup, multiply operands in
// shared memory while they go on.
#pragma once

#include "kernels/cuda/tiles.h"
#if defined(__CUDACC__)
#include "kernels/cuda/wgmma_shapes.h"
#else
#include "emulator/async.h"
#endif

namespace switchyard::gpu {

// Only code for sm_90a has the instructions, and the emulator.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define GPU_HAS_WGMMA 1
#endif

// Returns the descriptor of a matrix in shared memory, which wgmma reads: the address, the bytes from one
// block of 64 of the outer dim to the next where that dim is contiguous (`block`), and the bytes from eight
// rows of 128 bytes to the next eight. All three are in units of 16 bytes.
GPU_FUNCTION std::uint64_t matrix_at(const void* address, std::uint32_t block) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kEightRows = 8 * 128 / 16;
  return kSwizzle128 | kEightRows << 32 | static_cast<std::uint64_t>(block / 16) << 16 |
         (shared_address(address) & 0x3ffffu) >> 4;
}

#if defined(__CUDACC__)

// d [64 x columns] = a [64 x 16] · b [16 x columns], or += where `add`; on its way when it returns.
// `transpose_`: the operand lies with its outer dim contiguous.
template <int columns, int transpose_a, int transpose_b>
GPU_FUNCTION void multiply(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b, bool add = true) {
#if defined(GPU_HAS_WGMMA)
  wgmma_detail::Shape<columns>::template by_address<transpose_a, transpose_b>(d, a, b, add ? 1 : 0);
#endif
}
// multiply() with a in registers, four of a thread: pairs of columns of row lane / 4 and of 8 more, then
// those of 8 columns more. Sums of a product have that order, eight for each four registers.
template <int columns, int transpose_b>
GPU_FUNCTION void multiply_registers(float (&d)[columns / 2], const std::uint32_t* a, std::uint64_t b,
                                     bool add = true) {
#if defined(GPU_HAS_WGMMA)
  wgmma_detail::Shape<columns>::template by_registers<transpose_b>(d, a, b, add ? 1 : 0);
#endif
}

GPU_FUNCTION void begin_multiplying() {
#if defined(GPU_HAS_WGMMA)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
GPU_FUNCTION void end_multiplying() {
#if defined(GPU_HAS_WGMMA)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
// Until no more than `left` of what end_multiplying() ended are on their way.
template <int left>
GPU_FUNCTION void wait_for_products() {
#if defined(GPU_HAS_WGMMA)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#endif
}
// Makes this thread's writes to shared memory visible to tensor cores after the next barrier.
GPU_FUNCTION void show_to_tensor_cores() {
#if defined(GPU_HAS_WGMMA)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#else

template <int columns, int transpose_a, int transpose_b>
void multiply(float (&d)[columns / 2], std::uint64_t a, std::uint64_t b, bool add = true) {
  emulator::multiply({.columns = columns,
                      .transpose_a = transpose_a != 0,
                      .transpose_b = transpose_b != 0,
                      .add = add,
                      .a_registers = nullptr,
                      .a = a,
                      .b = b,
                      .sums = d});
}
template <int columns, int transpose_b>
void multiply_registers(float (&d)[columns / 2], const std::uint32_t* a, std::uint64_t b, bool add = true) {
  emulator::multiply({.columns = columns,
                      .transpose_a = false,
                      .transpose_b = transpose_b != 0,
                      .add = add,
                      .a_registers = a,
                      .a = 0,
                      .b = b,
                      .sums = d});
}
inline void begin_multiplying() {
  emulator::begin_multiplying();
}
inline void end_multiplying() {
  emulator::end_multiplying();
}
template <int left>
void wait_for_products() {
  emulator::wait_for_products(left);
}
inline void show_to_tensor_cores() {
  emulator::show_shared();
}

#endif

}  // namespace switchyard::gpu
