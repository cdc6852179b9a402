// AMX's tile registers as memory, so that what AMX runs is tested on machines without it: built with
// -DSWITCHYARD_EMULATE_AMX=ON, for tests alone, since it is slow. Included by tile_target.h.
#pragma once

namespace switchyard::cpu::SWITCHYARD_TILES {

struct alignas(64) EmulatedTile {
  std::byte row[16][64];
};

inline EmulatedTile& emulated_tile(int tile) {
  thread_local EmulatedTile tiles[8];
  return tiles[tile];
}

inline void emulate_load(int tile, const void* from, std::int64_t stride) {
  for (std::int64_t i = 0; i < 16; ++i)
    __builtin_memcpy(emulated_tile(tile).row[i], static_cast<const std::byte*>(from) + i * stride, 64);
}
inline void emulate_store(int tile, void* to, std::int64_t stride) {
  for (std::int64_t i = 0; i < 16; ++i)
    __builtin_memcpy(static_cast<std::byte*>(to) + i * stride, emulated_tile(tile).row[i], 64);
}
inline void emulate_zero(int tile) {
  emulated_tile(tile) = {};
}
SWITCHYARD_TILED inline void emulate_product(int sum, int left, int right) {
  for (std::int64_t i = 0; i < 16; ++i) {
    auto* const row = emulated_tile(sum).row[i];
    __m512 sums = _mm512_load_ps(row);
    for (std::int64_t pair = 0; pair < 16; ++pair) {
      int both;
      __builtin_memcpy(&both, emulated_tile(left).row[i] + 4 * pair, sizeof both);
      sums = _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(_mm512_set1_epi32(both)),
                              reinterpret_cast<__m512bh>(_mm512_load_si512(emulated_tile(right).row[pair])));
    }
    _mm512_store_ps(row, sums);
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES

#define SWITCHYARD_TILE_LOAD(tile, from, stride) \
  ::switchyard::cpu::amx_tiles::emulate_load(tile, from, stride)
#define SWITCHYARD_TILE_STREAM_LOAD(tile, from, stride) \
  ::switchyard::cpu::amx_tiles::emulate_load(tile, from, stride)
#define SWITCHYARD_TILE_STORE(tile, to, stride) ::switchyard::cpu::amx_tiles::emulate_store(tile, to, stride)
#define SWITCHYARD_TILE_ZERO(tile) ::switchyard::cpu::amx_tiles::emulate_zero(tile)
#define SWITCHYARD_TILE_PRODUCT(sum, left, right) \
  ::switchyard::cpu::amx_tiles::emulate_product(sum, left, right)
