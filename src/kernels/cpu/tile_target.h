// Tile kernels are written once and compiled twice: for AMX, and, by the files of kernels/cpu/soft_tiles, for
// AVX512-BF16, where a tile register is a small array and a tile product 256 dot instructions. Both round
// alike.
//
// A tile is 16 rows of 64 bytes: 16 x 32 bf16 of a left operand, 16 pairs of depth x 16 columns of a right
// one, or 16 x 16 float sums. Registers 0 to 3 are for sums, 4 to 7 for operands, whose rows are 64 bytes
// apart and which must stay in memory as they are until they have been multiplied.
//
// Code between SWITCHYARD_TILES_BEGIN and SWITCHYARD_TILES_END, in namespace
// switchyard::cpu::SWITCHYARD_TILES, may use AVX-512 (with BF16) and tiles; dispatch.h sees to it that it
// runs only where the machine has them. Headers are included before it.
#pragma once

#if defined(__x86_64__)
#if defined(SWITCHYARD_SOFT_TILES)
#define SWITCHYARD_TILES soft_tiles
#define SWITCHYARD_TILES_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw"
#else
#define SWITCHYARD_TILES amx_tiles
#define SWITCHYARD_TILES_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw,amx-tile,amx-bf16"
#endif

#define SWITCHYARD_PRAGMA(text) _Pragma(#text)
#define SWITCHYARD_PUSH_TARGET(text) SWITCHYARD_PRAGMA(text)
#if defined(__clang__)
#define SWITCHYARD_TILES_BEGIN \
  SWITCHYARD_PUSH_TARGET(      \
      clang attribute push(__attribute__((target(SWITCHYARD_TILES_TARGET))), apply_to = function))
#define SWITCHYARD_TILES_END _Pragma("clang attribute pop")
#else
// g++ 12's own intrinsics read a variable that they leave uninitialised on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define SWITCHYARD_TILES_BEGIN \
  _Pragma("GCC push_options") SWITCHYARD_PUSH_TARGET(GCC target(SWITCHYARD_TILES_TARGET))
#define SWITCHYARD_TILES_END _Pragma("GCC pop_options")
#endif
// The same for single functions.
#define SWITCHYARD_TILED __attribute__((target(SWITCHYARD_TILES_TARGET)))
#define SWITCHYARD_TILED_INLINE SWITCHYARD_TILED __attribute__((always_inline)) inline
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace switchyard::cpu::SWITCHYARD_TILES {

#if defined(SWITCHYARD_SOFT_TILES)

struct SoftTiles {
  alignas(64) float sums[4][256];
  const std::uint16_t* operand[8];
};

inline SoftTiles& soft_tiles_of_thread() {
  thread_local SoftTiles tiles;
  return tiles;
}

// Nothing to set up.
class TileSession {
 public:
  TileSession() {}  // user-provided: keeps the object from counting as unused
};

SWITCHYARD_TILED_INLINE void copy_sums(const void* from, std::size_t from_stride, void* to,
                                       std::size_t to_stride) {
#pragma GCC unroll 16
  for (std::size_t i = 0; i < 16; ++i) {
    _mm512_storeu_si512(static_cast<std::byte*>(to) + i * to_stride,
                        _mm512_loadu_si512(static_cast<const std::byte*>(from) + i * from_stride));
  }
}

// sums[i][:] += left[i] . right, 16 sums in registers.
SWITCHYARD_TILED inline void soft_product(float* sums, const std::uint16_t* left,
                                          const std::uint16_t* right) {
  __m512 row[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) row[i] = _mm512_load_ps(sums + 16 * i);
  for (std::ptrdiff_t pair = 0; pair < 16; ++pair) {
    const auto columns = reinterpret_cast<__m512bh>(_mm512_load_si512(right + 32 * pair));
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      int both;
      __builtin_memcpy(&both, left + 32 * i + 2 * pair, sizeof both);
      row[i] = _mm512_dpbf16_ps(row[i], reinterpret_cast<__m512bh>(_mm512_set1_epi32(both)), columns);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_ps(sums + 16 * i, row[i]);
}

SWITCHYARD_TILED_INLINE void soft_load(int tile, const void* from, std::int64_t stride) {
  SoftTiles& tiles = soft_tiles_of_thread();
  if (tile >= 4) {
    tiles.operand[tile] = static_cast<const std::uint16_t*>(from);
  } else {
    copy_sums(from, static_cast<std::size_t>(stride), tiles.sums[tile], 64);
  }
}
SWITCHYARD_TILED_INLINE void soft_store(int tile, void* to, std::int64_t stride) {
  copy_sums(soft_tiles_of_thread().sums[tile], 64, to, static_cast<std::size_t>(stride));
}
SWITCHYARD_TILED_INLINE void soft_zero(int tile) {
  float* sums = soft_tiles_of_thread().sums[tile];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_ps(sums + 16 * i, _mm512_setzero_ps());
}
SWITCHYARD_TILED_INLINE void soft_multiply(int sum, int left, int right) {
  SoftTiles& tiles = soft_tiles_of_thread();
  soft_product(tiles.sums[sum], tiles.operand[left], tiles.operand[right]);
}

#define SWITCHYARD_TILE_LOAD(tile, from, stride) soft_load(tile, from, stride)
#define SWITCHYARD_TILE_STREAM_LOAD(tile, from, stride) soft_load(tile, from, stride)
#define SWITCHYARD_TILE_STORE(tile, to, stride) soft_store(tile, to, stride)
#define SWITCHYARD_TILE_ZERO(tile) soft_zero(tile)
#define SWITCHYARD_TILE_PRODUCT(sum, left, right) soft_multiply(sum, left, right)

#else

// All eight tile registers as 16 rows of 64 bytes, while this lives. Written as assembly: g++ 12 drops the
// stores to the configuration before its _tile_loadconfig at -O2.
class TileSession {
 public:
  TileSession() {
    struct alignas(64) {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const config;
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  ~TileSession() { asm volatile("tilerelease" ::: "memory"); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

#define SWITCHYARD_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define SWITCHYARD_TILE_STREAM_LOAD(tile, from, stride) _tile_stream_loadd(tile, from, stride)
#define SWITCHYARD_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define SWITCHYARD_TILE_ZERO(tile) _tile_zero(tile)
#define SWITCHYARD_TILE_PRODUCT(sum, left, right) _tile_dpbf16ps(sum, left, right)

#endif

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif
