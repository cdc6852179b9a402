// Tile kernels are written once and compiled twice: for AMX, and, by the files of the folders avx512_bf16,
// for AVX512-BF16. They share everything but the product of a block of tiles (tile_block.h), and round alike.
//
// A tile is 16 rows of 64 bytes: 16 x 32 bf16 of a left operand, 16 pairs of depth x 16 columns of a right
// one, or 16 x 16 float sums. Registers 0 to 3 are for sums, 4 to 7 for operands.
//
// Code between SWITCHYARD_TILES_BEGIN and SWITCHYARD_TILES_END, in namespace
// switchyard::cpu::SWITCHYARD_TILES, may use AVX-512 (with BF16) and tiles; the registry sees to it that it
// runs only where the machine has them. Headers are included before it.
//
// On a machine without AMX what AMX runs can be tested by SWITCHYARD_ISA=amx_emulated (amx_emulation.h), and
// timed when built with SWITCHYARD_AMX_COSTS (tile_costs.h).
#pragma once

#if defined(__x86_64__)
#if defined(SWITCHYARD_SOFT_TILES)
#define SWITCHYARD_TILES soft_tiles
#define SWITCHYARD_TILES_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,prfchw"
#elif defined(SWITCHYARD_AMX_COSTS)
#define SWITCHYARD_TILES amx_tiles
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
// Compiles a single function for the target.
#define SWITCHYARD_TILED __attribute__((target(SWITCHYARD_TILES_TARGET)))
#define SWITCHYARD_TILED_INLINE SWITCHYARD_TILED __attribute__((always_inline)) inline
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace switchyard::cpu::SWITCHYARD_TILES {

#if defined(SWITCHYARD_SOFT_TILES) || defined(SWITCHYARD_AMX_COSTS)

// Nothing to set up.
class TileSession {
 public:
  TileSession() {}  // user-provided: keeps the object from counting as unused
};

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

#if defined(SWITCHYARD_AMX_COSTS) && !defined(SWITCHYARD_SOFT_TILES)
#include "kernels/cpu/tile_costs.h"
#endif
#endif
