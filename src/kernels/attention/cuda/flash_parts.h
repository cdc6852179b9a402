// The parts of both passes of flash attention: rows of tiles in shared memory, products of them, and masks.
// Four warps take 64 rows, 16 each, and go through the other sequence 64 at a time, with scores in
// registers. Scores of tiles without a visible key are never made.
#pragma once

#include "kernels/attention/cuda/key_tiles.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu::flash {

constexpr int kRows = 64, kThreads = 128, kRowsOfWarp = 16;
constexpr int kBlockElements = kRows * kTileWidth;  // of 64 rows and 64 columns
static_assert(kAttentionTile == kRows);
constexpr float kLog2e = 1.44269504088896340736f;

// Both widths, in whole blocks of columns.
template <int width>
constexpr std::size_t kTileBytes = std::size_t{kRows} * width * sizeof(bfloat16);

struct Matrices {
  const bfloat16 *q, *k, *v, *out, *dout;
  const float *lse, *delta;
  const TileRange *q_ranges, *kv_ranges;
};

// Starts to copy rows [first, first + 64) of one head.
template <int width>
GPU_FUNCTION void load_rows(bfloat16* tile, const bfloat16* data, std::int64_t leading, std::int64_t first,
                            std::int64_t end, std::int64_t columns) {
  GPU_UNROLL
  for (int block = 0; block < width / kTileWidth; ++block)
    load_tile<kRows, kTileWidth, kThreads, true>(
        tile + block * kBlockElements, {data, nullptr, leading, first, end, block * kTileWidth, columns});
}

// Four tiles of 16 rows (or columns of the product) at 16 of the depth; see multiply_tiles.
GPU_FUNCTION void load_rows_of(const bfloat16* tile, int row, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8;
  load_tiles(tile + place_of<kRows>(row + which % 2 * 8 + lane % 8, depth / kChunk + which / 2), tiles);
}
GPU_FUNCTION void load_columns_of(const bfloat16* tile, int column, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8;
  load_tiles_transposed(tile + place_of<kRows>(depth + which / 2 * 8 + lane % 8, column / kChunk + which % 2),
                        tiles);
}

// sums [16 x columns] += rows of `a` from `row` on · (rows of `b` from `first` on)ᵀ, over a depth of `width`.
template <int columns, int width>
GPU_FUNCTION void multiply_rows(float (&sums)[columns / 8][4], const bfloat16* a, int row, const bfloat16* b,
                                int first) {
  GPU_NO_UNROLL
  for (int depth = 0; depth < width; depth += 16) {
    std::uint32_t x[4];
    load_rows_of(a, row, depth, x);
    GPU_UNROLL
    for (int j = 0; j < columns / 16; ++j) {
      std::uint32_t y[4];
      load_rows_of(b, first + j * 16, depth, y);
      multiply_tiles(sums[2 * j], x, y[0], y[2]);
      multiply_tiles(sums[2 * j + 1], x, y[1], y[3]);
    }
  }
}

// sums [16 x width] += weights [16 x depth], of a product like the one above, rounded · rows
// of `b` from `first` on.
template <int depth, int width>
GPU_FUNCTION void multiply_weights(float (&sums)[width / 8][4], const float (&weights)[depth / 8][4],
                                   const bfloat16* b, int first) {
  GPU_UNROLL
  for (int d = 0; d < depth / 16; ++d) {
    const float(&left)[4] = weights[2 * d];
    const float(&right)[4] = weights[2 * d + 1];
    const std::uint32_t x[4] = {rounded_pair(left[0], left[1]), rounded_pair(left[2], left[3]),
                                rounded_pair(right[0], right[1]), rounded_pair(right[2], right[3])};
    GPU_UNROLL
    for (int j = 0; j < width / 16; ++j) {
      std::uint32_t y[4];
      load_columns_of(b, j * 16, first + d * 16, y);
      multiply_tiles(sums[2 * j], x, y[0], y[2]);
      multiply_tiles(sums[2 * j + 1], x, y[1], y[3]);
    }
  }
}

template <typename T, int count>
GPU_FUNCTION void clear(T (&sums)[count][4]) {
  GPU_UNROLL
  for (int i = 0; i < count; ++i) {
    GPU_UNROLL
    for (int j = 0; j < 4; ++j) sums[i][j] = 0;
  }
}

// The place where a block of threads of a pass over queries works; rows of this thread are `row` and 8 more.
struct QueryBlock {
  std::int64_t batch, head, kv_head, tile;
};
GPU_FUNCTION QueryBlock query_block(const AttentionSpec& a, std::int64_t tiles) {
  const std::int64_t head = block_index_y() % a.heads;
  // The last tiles, which have most keys, first.
  return {block_index_y() / a.heads, head, head / (a.heads / a.kv_heads), tiles - 1 - block_index()};
}

// ---- On the host

inline Matrices matrices_of(const AttentionProblem& p, const Ranges& ranges, const float* delta) {
  return {static_cast<const bfloat16*>(p.q),
          static_cast<const bfloat16*>(p.k),
          static_cast<const bfloat16*>(p.v),
          static_cast<const bfloat16*>(p.out),
          static_cast<const bfloat16*>(p.dout),
          p.lse,
          delta,
          ranges.of_queries(),
          ranges.of_keys()};
}

inline Launch tiles_launch(std::int64_t tiles, std::int64_t heads, std::size_t shared_bytes) {
  return {.blocks = tiles,
          .threads = kThreads,
          .shared_bytes = shared_bytes,
          .blocks_y = static_cast<int>(heads)};
}

// Calls body(width of queries and keys, width of values) with the least of the widths
// that there are kernels for.
template <typename Body>
void with_widths(const AttentionSpec& a, const Body& body) {
  const auto widest = a.qk_dim > a.v_dim ? a.qk_dim : a.v_dim;
  if (widest <= 64) return body(std::integral_constant<int, 64>(), std::integral_constant<int, 64>());
  if (widest <= 128) return body(std::integral_constant<int, 128>(), std::integral_constant<int, 128>());
  body(std::integral_constant<int, 192>(), std::integral_constant<int, 128>());
}

}  // namespace switchyard::gpu::flash
