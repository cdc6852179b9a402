// Fragments of matrices as tensor cores take them (PTX ISA: ldmatrix, mma.sync.m16n8k16), and copies into
// shared memory that go on while threads compute (cp.async). For bfloat16, and sums in float32.
//
// All functions are a whole warp's: each of its threads must call. A tile is 8 x 8 elements; lane t of the
// warp holds elements 2·(t mod 4) and the next of row t/4 in one register, the first in its lower half.
#pragma once

#include <cstring>

#include "kernels/cuda/portable.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)

GPU_FUNCTION std::uint32_t shared_address(const void* address) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
}

// Four tiles; `row`: in shared memory the 16 bytes of row t mod 8 of tile t / 8, for lane t. 16-byte aligned.
GPU_FUNCTION void load_tiles(const void* row, std::uint32_t (&tiles)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared_address(row)));
}
// Loads four tiles like load_tiles(), each transposed.
GPU_FUNCTION void load_tiles_transposed(const void* row, std::uint32_t (&tiles)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(shared_address(row)));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Stores four tiles where load_tiles() would read them.
GPU_FUNCTION void store_tiles(void* row, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
#endif

// c [16 x 8] += a [16 x 16] · b [16 x 8]. Tiles of a: rows 0 and 8 of columns 0, then of columns 8; of b,
// each transposed: rows 0, then 8. c: rows 0 (two elements), then rows 8.
GPU_FUNCTION void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                 std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two sums, rounded to nearest even, as neighbours of a fragment.
GPU_FUNCTION std::uint32_t rounded_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 16 bytes to shared memory, of which the first `bytes` come from `from` and the rest are 0. Both 16-byte
// aligned; with no bytes `from` is not read.
GPU_FUNCTION void copy_async(void* to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(bytes)
               : "memory");
}
// Makes the copies since the last call one group.
GPU_FUNCTION void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until no more than the last `left` groups of this thread are on their way.
template <int left>
GPU_FUNCTION void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

#else

inline std::uint32_t shared_address(const void* address) {
  return emulator::shared_address(address);
}

namespace tiles_detail {

inline const std::uint16_t* row_of_tile(int tile, int row) {
  return *static_cast<const std::uint16_t* const*>(emulator::exchanged(tile * 8 + row));
}

inline std::uint32_t pair(std::uint16_t low, std::uint16_t high) {
  return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
}

inline float half_of(std::uint32_t pair, int which) {
  return float_of_bits(which == 0 ? pair << 16 : pair & 0xffff0000u);
}

}  // namespace tiles_detail

inline void load_tiles(const void* row, std::uint32_t (&tiles)[4]) {
  emulator::exchange(&row, sizeof(row));
  const int lane = thread_index() % kWarp;
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t* const from = tiles_detail::row_of_tile(i, lane / 4) + lane % 4 * 2;
    tiles[i] = tiles_detail::pair(from[0], from[1]);
  }
}

inline void load_tiles_transposed(const void* row, std::uint32_t (&tiles)[4]) {
  emulator::exchange(&row, sizeof(row));
  const int lane = thread_index() % kWarp;
  for (int i = 0; i < 4; ++i)
    tiles[i] = tiles_detail::pair(tiles_detail::row_of_tile(i, lane % 4 * 2)[lane / 4],
                                  tiles_detail::row_of_tile(i, lane % 4 * 2 + 1)[lane / 4]);
}

inline void store_tiles(void* row, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  emulator::exchange(&row, sizeof(row));
  const int lane = thread_index() % kWarp;
  const std::uint32_t tiles[4] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    auto* const to = *static_cast<unsigned char* const*>(emulator::exchanged(i * 8 + lane / 4));
    std::memcpy(to + lane % 4 * 4, &tiles[i], sizeof(tiles[i]));
  }
}

inline void multiply_tiles(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  struct Given {
    std::uint32_t a[4], b[2];
  };
  const Given mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulator::exchange(&mine, sizeof(mine));
  const auto* const all = static_cast<const std::byte*>(emulator::exchanged(0));
  const auto given = [&](int lane) {
    return reinterpret_cast<const Given*>(all + static_cast<std::size_t>(lane) * emulator::kExchangeBytes);
  };
  const int lane = thread_index() % kWarp;
  // Rows lane / 4 and 8 more of a, and two columns of b, 16 values each, from the lanes that hold them.
  float x[2][16], y[2][16];
  for (int which = 0; which < 2; ++which) {
    for (int holder = 0; holder < 4; ++holder) {
      const Given& of_a = *given(lane / 4 * 4 + holder);
      const Given& of_b = *given((lane % 4 * 2 + which) * 4 + holder);
      for (int part = 0; part < 2; ++part) {
        const int k = part * 8 + holder * 2;
        for (int half = 0; half < 2; ++half) {
          x[which][k + half] = tiles_detail::half_of(of_a.a[part * 2 + which], half);
          y[which][k + half] = tiles_detail::half_of(of_b.b[part], half);
        }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += x[i / 2][k] * y[i % 2][k];
    c[i] += sum;
  }
}

inline std::uint32_t rounded_pair(float low, float high) {
  return tiles_detail::pair(from_float<bfloat16>(low).bits, from_float<bfloat16>(high).bits);
}

inline void copy_async(void* to, const void* from, int bytes) {
  if (bytes > 0) emulator::copy_later(to, from, static_cast<std::size_t>(bytes));
  for (int i = bytes; i < 16; ++i) static_cast<unsigned char*>(to)[i] = 0;
}
inline void end_copies() {
  emulator::end_group();
}
template <int left>
void wait_for_copies() {
  emulator::wait_for_groups(left);
}

#endif

}  // namespace switchyard::gpu
