// AMX's costs without its numbers: what AMX runs takes about as long on a machine without it, so that what
// stands beside the products can be measured there. Built with -DSWITCHYARD_AMX_COSTS=ON, for `bench` alone.
// Included by tile_target.h.
//
// A tile product is a square root that waits for the one before: one instruction whose time (5.7 ns on a
// Zen 4 of 3.65 GHz) is that of a tile product (5.0 to 5.4 ns), and which other work may overtake. A tile
// load touches its 16 cache lines, so that it costs what the caches make of them; a tile store writes them.
#pragma once

namespace switchyard::cpu::SWITCHYARD_TILES {

SWITCHYARD_TILED_INLINE void touch_tile(const void* from, std::int64_t stride) {
  const auto* line = static_cast<const std::byte*>(from);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i, line += stride) asm volatile("vmovdqu (%0), %%ymm15" ::"r"(line) : "xmm15");
}
SWITCHYARD_TILED_INLINE void write_tile(void* to, std::int64_t stride) {
  auto* line = static_cast<std::byte*>(to);
  const __m512 any = _mm512_set1_ps(0.01f);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i, line += stride) _mm512_storeu_ps(line, any);
}
SWITCHYARD_TILED_INLINE void wait_for_tile_product() {
  asm volatile("vsqrtsd %%xmm31, %%xmm31, %%xmm31" ::: "xmm31");
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES

#define SWITCHYARD_TILE_LOAD(tile, from, stride) ::switchyard::cpu::amx_tiles::touch_tile(from, stride)
#define SWITCHYARD_TILE_STREAM_LOAD(tile, from, stride) ::switchyard::cpu::amx_tiles::touch_tile(from, stride)
#define SWITCHYARD_TILE_STORE(tile, to, stride) ::switchyard::cpu::amx_tiles::write_tile(to, stride)
#define SWITCHYARD_TILE_ZERO(tile) static_cast<void>(0)
#define SWITCHYARD_TILE_PRODUCT(sum, left, right) ::switchyard::cpu::amx_tiles::wait_for_tile_product()
