// The parts of both passes of attention on Hopper: tiles that the copy engine brings, their place in shared
// memory, and the order of work.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/attention/cuda/key_tiles.h"
#include "kernels/cuda/copy_engine.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu::hopper {

constexpr int kGroupRows = 64, kGroupThreads = 128, kRowsOfWarp = 16;
constexpr float kLog2e = 1.44269504088896340736f;
// The system takes 1 KB of a block's shared memory; barriers and their like need less than another.
constexpr std::size_t kMostShared = 227 * 1024, kStaticShared = 1024;

// A place in a ring of tiles, and the parity of the round.
template <int count>
struct Stage {
  int at = 0;
  std::uint32_t phase = 0;
  GPU_FUNCTION void next() {
    if (++at < count) return;
    at = 0;
    phase ^= 1;
  }
};

// ---- Tiles

// The map of heads [batch, length, heads, width], which brings `rows` positions of 64 columns of a head.
inline TensorMap map_of_heads(const void* data, std::int64_t batch, std::int64_t length, std::int64_t heads,
                              std::int64_t width, int rows) {
  return tensor_map(data, {width, heads, length, batch}, {width, heads * width, length * heads * width},
                    rows);
}

// Starts to copy `rows` positions of a head from `first` on, in blocks of 64 columns. Columns and positions
// that the head has not are 0.
template <int width, int rows>
GPU_FUNCTION void copy_columns(unsigned char* to, const TensorMap& map, std::int64_t head, std::int64_t first,
                               std::int64_t batch, std::uint64_t* barrier) {
  for (int block = 0; block < width / kTileWidth; ++block)
    copy_box(to + block * rows * kTileWidth * 2, map, block * kTileWidth, head, first, batch, barrier);
}

// 16 columns of all rows of a tile, as the depth of a product: from `depth` on.
template <int rows>
GPU_FUNCTION std::uint64_t rows_at(const unsigned char* tile, int depth) {
  return matrix_at(tile + depth / kTileWidth * rows * kTileWidth * 2 + depth % kTileWidth * 2, 16);
}
// 16 rows of all columns of a tile of `rows` rows, as the depth of a product: from `depth` on.
template <int rows>
GPU_FUNCTION std::uint64_t columns_at(const unsigned char* tile, int depth) {
  return matrix_at(tile + depth * kTileWidth * 2, rows * kTileWidth * 2);
}

// Begins sums = a · bᵀ over a depth of `width`. a: 64 rows of a tile of `a_rows`; b: a tile of `columns`.
template <int width, int a_rows, int columns>
GPU_FUNCTION void multiply_rows(float (&sums)[columns / 2], const unsigned char* a, const unsigned char* b) {
  begin_multiplying();
  GPU_UNROLL
  for (int depth = 0; depth < width; depth += 16)
    multiply<columns, 0, 0>(sums, rows_at<a_rows>(a, depth), rows_at<columns>(b, depth), depth > 0);
  end_multiplying();
}

// Begins sums += factors [64 x rows] · the tile of `rows` rows of `width` columns.
template <int width, int rows>
GPU_FUNCTION void add_columns(float (&sums)[width / 2], const std::uint32_t (&factors)[rows / 4],
                              const unsigned char* tile) {
  begin_multiplying();
  GPU_UNROLL
  for (int depth = 0; depth < rows; depth += 16)
    multiply_registers<width, 1>(sums, factors + depth / 4, columns_at<rows>(tile, depth));
  end_multiplying();
}

// This thread's address for store_tiles() into 64 rows of 64 columns: two tiles of the warp's first 8 rows
// and two of its next 8, from column 8 * chunk on.
GPU_FUNCTION unsigned char* place_of_tiles(unsigned char* block, int chunk) {
  const int lane = thread_index() % kWarp,
            row = thread_index() % kGroupThreads / kWarp * kRowsOfWarp + lane % kRowsOfWarp;
  return block + row * kTileWidth * 2 + (((chunk + lane / kRowsOfWarp) ^ (row % 8)) * kChunk) * 2;
}

// Rounds a warpgroup's sums, times the factors of their rows, into 64 rows of a tile of `rows` rows.
template <int width, int rows = kGroupRows>
GPU_FUNCTION void put_rows(unsigned char* tile, const float (&sums)[width / 2], const float (&factor)[2]) {
  GPU_UNROLL
  for (int j = 0; j < width / 16; ++j) {
    const float* const x = sums + 8 * j;
    store_tiles(
        place_of_tiles(tile + j / 4 * rows * kTileWidth * 2, j % 4 * 2),
        rounded_pair(x[0] * factor[0], x[1] * factor[0]), rounded_pair(x[2] * factor[1], x[3] * factor[1]),
        rounded_pair(x[4] * factor[0], x[5] * factor[0]), rounded_pair(x[6] * factor[1], x[7] * factor[1]));
  }
}

// Starts to store 64 rows of a tile of `rows`, as positions of a head from `first` on.
template <int width, int rows>
GPU_FUNCTION void store_columns(const TensorMap& map, const unsigned char* from, std::int64_t head,
                                std::int64_t first, std::int64_t batch) {
  for (int block = 0; block < width / kTileWidth; ++block)
    store_box(map, from + block * rows * kTileWidth * 2, block * kTileWidth, head, first, batch);
}

// The number itself, which the compiler takes for a new one: what is computed of it in a loop is not kept in
// registers from one round to the next.
GPU_FUNCTION int computed_again(int number) {
#if defined(__CUDACC__)
  asm volatile("" : "+r"(number));
#endif
  return number;
}

// ---- Scores

// 2^x, 0 for -infinity, within 2^-22 of it.
GPU_FUNCTION float power_of_two(float x) {
#if defined(__CUDACC__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return std::exp2(x);
#endif
}
GPU_FUNCTION float larger(float x, float y) {
#if defined(__CUDACC__)
  return fmaxf(x, y);
#else
  return x > y ? x : y;
#endif
}

// ---- Order of work

// A tile of queries or keys of one head.
struct HeadTile {
  int batch, head, kv_head, tile;
};

// Blocks of threads, as many as multiprocessors, go through the tiles of all heads. The last tiles, which
// have most keys where attention is causal, come first, within sections of heads whose keys and values fit
// the L2 cache. Every second round goes backwards, so that no block gets the longest of each.
struct HeadOrder {
  int heads, group, tiles, section, all;

  HeadOrder(const AttentionSpec& a, std::int64_t tiles_of_head)
      : heads(static_cast<int>(a.heads)),
        group(static_cast<int>(a.heads / a.kv_heads)),
        tiles(static_cast<int>(tiles_of_head)),
        all(static_cast<int>(a.batch * a.heads * tiles_of_head)) {
    constexpr std::int64_t kCacheBytes = std::int64_t{32} << 20;
    const std::int64_t of_head = a.kv_length * (a.qk_dim + a.v_dim) * 2;
    section =
        static_cast<int>(std::clamp(kCacheBytes / of_head * group, a.heads / a.kv_heads, a.batch * a.heads));
  }

  // This block's tile of a round; false: it has none.
  GPU_FUNCTION bool tile_of(int round, HeadTile& at) const {
    const int blocks = static_cast<int>(block_count()), own = static_cast<int>(block_index()),
              work = round * blocks + (round % 2 == 0 ? own : blocks - 1 - own);
    if (work >= all) return false;
    const int of_section = section * tiles, number = work / of_section, within = work % of_section,
              left = all / tiles - number * section, width = left < section ? left : section,
              of_all_heads = number * section + within % width;
    at.batch = of_all_heads / heads;
    at.head = of_all_heads % heads;
    at.kv_head = at.head / group;
    at.tile = tiles - 1 - within / width;
    return true;
  }
  GPU_FUNCTION int rounds() const {
    const int blocks = static_cast<int>(block_count());
    return (all + blocks - 1) / blocks;
  }
};

// Goes to the next tile of keys that the tile of queries sees, the last first. All roles of a block walk so.
template <typename Shape>
GPU_FUNCTION bool next_key_tile(const TileMasks& m, const HeadTile& at, TileWalk<true>& walk) {
  return walk.next([&](int tile) {
    const TileMask mask = mask_of(range_of_queries(m, at.batch, at.tile, Shape::rows),
                                  range_of_keys(m, at.batch, tile, Shape::keys), m.a.causal);
    const bool ends = std::int64_t{tile + 1} * Shape::keys > m.a.kv_length;
    return mask == TileMask::all && ends ? TileMask::some : mask;
  });
}

inline bool are_aligned(std::initializer_list<const TensorView*> operands) {
  return std::all_of(operands.begin(), operands.end(), [](const TensorView* x) {
    return reinterpret_cast<std::uintptr_t>(x->device_address()) % 16 == 0;
  });
}

}  // namespace switchyard::gpu::hopper
