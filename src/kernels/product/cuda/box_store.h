// How a warpgroup stores its sums, 64 rows of bfloat16, by the copy engine: 64 columns at a time through two
// tiles in shared memory, while it goes on.
#pragma once

#include "kernels/cuda/copy_engine.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {

constexpr int kStoreRows = 64, kStoreTile = kStoreRows * kTileWidth, kStoreTiles = 2;

// Returns whether C can be stored so: pieces of 16 bytes lie wholly in a row of C. For the host.
inline bool stores_boxes(const DeviceProduct& p) {
  return p.c_dtype == DType::bf16 && p.bias == nullptr && !p.accumulate && p.n % kChunk == 0 &&
         p.ldc % kChunk == 0 && p.c_stride % kChunk == 0 && reinterpret_cast<std::uintptr_t>(p.c) % 16 == 0;
}

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

class BoxStore {
 public:
  // `tiles`: kStoreTiles of the warpgroup's own, aligned to 1024 bytes; `id`: its named barrier.
  GPU_FUNCTION BoxStore(bfloat16* tiles, int id) : tiles_(tiles), id_(id) {}

  // The columns of C from part.column on, of the 64 rows from `row` on. `map`: of C, in boxes of 64 x 64.
  template <int columns>
  GPU_FUNCTION void store(const DeviceProduct& p, const TensorMap& map, const Part& part, std::int64_t row,
                          const float (&sums)[columns / 2]) {
    if (row >= part.rows_end) return;
    GPU_UNROLL
    for (int first = 0; first < columns; first += kTileWidth) {
      const std::int64_t column = part.column + first;
      if (column >= p.n) return;
      if (thread() == 0) wait_for_stores<kStoreTiles - 1, true>();
      meet();  // the tile has been read, by the copy engine or by all threads
      bfloat16* const tile = tiles_ + turn_ * kStoreTile;
      turn_ ^= 1;
      GPU_UNROLL
      for (int j = 0; j < kTileWidth / 8; j += 2) {
        const int at = thread() / kWarp * 16 + thread() % 16, chunk = j + thread() % kWarp / 16;
        const float* const x = sums + first / 2 + j * 4;
        store_tiles(tile + place_of<kStoreRows>(at, chunk), rounded_pair(x[0], x[1]),
                    rounded_pair(x[2], x[3]), rounded_pair(x[4], x[5]), rounded_pair(x[6], x[7]));
      }
      show_to_tensor_cores();
      meet();
      // A box must not reach into rows of the next group; behind the last row of all there is nothing.
      const bool whole = row + kStoreRows <= part.rows_end || part.rows_end == p.m;
      if (whole && thread() == 0) {
        const bool batched = p.groups != Groups::rows && p.c_stride != 0;
        store_box(map, tile, column, row, batched ? part.group : 0);
      }
      if (!whole) store_tail(p, part, row, column, tile);
      if (thread() == 0) end_stores();  // also without one, so that groups are in step with tiles
    }
  }

  // The tiles may not go before.
  GPU_FUNCTION void finish() {
    if (thread() == 0) wait_for_stores<0, true>();
  }

 private:
  GPU_FUNCTION static int thread() { return thread_index() % 128; }
  GPU_FUNCTION void meet() const { named_barrier(id_, 128); }

  GPU_FUNCTION static void store_tail(const DeviceProduct& p, const Part& part, std::int64_t row,
                                      std::int64_t column, const bfloat16* tile) {
    constexpr int kChunksOfRow = kTileWidth / kChunk, kRowsAtOnce = 128 / kChunksOfRow;
    auto* const c = static_cast<bfloat16*>(p.c) + part.c_offset;
    const int chunk = thread() % kChunksOfRow;
    GPU_NO_UNROLL
    for (int i = thread() / kChunksOfRow; i < kStoreRows; i += kRowsAtOnce) {
      if (row + i >= part.rows_end || column + chunk * kChunk >= p.n) continue;
      using Piece = Vector<std::uint32_t, 4>;
      *reinterpret_cast<Piece*>(c + (row + i) * p.ldc + column + chunk * kChunk) =
          *reinterpret_cast<const Piece*>(tile + place_of<kStoreRows>(i, chunk));
    }
  }

  bfloat16* const tiles_;
  const int id_;
  int turn_ = 0;
};

#endif

}  // namespace switchyard::gpu
