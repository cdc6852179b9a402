// GroupTable says where the groups of a product begin. A block that works on many parts makes it once in
// shared memory, so that each thread finds a part by a few reads and without the others of its warp.
#pragma once

#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {

// So many fit beside the tiles of tma_product, which refuses more.
constexpr int kMostGroups = 352;

struct GroupTable {
  // [groups + 1]: the blocks of rows, and the rows (of groups of depth: of the depth), of the groups before.
  std::int32_t *first_block, *first_row;

  // Returns whether the groups of `p` fit, if it has any. For the host.
  static bool takes(const DeviceProduct& p) { return p.groups == Groups::none || p.batch <= kMostGroups; }

  // By one warp; the block meets before the table is read.
  GPU_FUNCTION void make(const DeviceProduct& p, int block_rows) const {
    const int lane = thread_index() % kWarp, groups = static_cast<int>(p.batch);
    std::int32_t rows_before = 0, blocks_before = 0;
    for (int first = 0; first < groups; first += kWarp) {
      const int group = first + lane;
      const std::int32_t size = group < groups ? p.group_sizes[group] : 0;
      const std::int32_t blocks = (size + block_rows - 1) / block_rows;
      std::int32_t rows_to = size, blocks_to = blocks;  // sums up to this lane
      for (int by = 1; by < kWarp; by *= 2) {
        const std::int32_t more_rows = shuffle_up(rows_to, by), more_blocks = shuffle_up(blocks_to, by);
        if (lane >= by) {
          rows_to += more_rows;
          blocks_to += more_blocks;
        }
      }
      if (group < groups) {
        first_block[group] = blocks_before + blocks_to - blocks;
        first_row[group] = rows_before + rows_to - size;
      }
      rows_before += shuffle(rows_to, kWarp - 1);
      blocks_before += shuffle(blocks_to, kWarp - 1);
    }
    if (lane == 0) {
      first_block[groups] = blocks_before;
      first_row[groups] = rows_before;
    }
  }

  // Blocks of rows of a product: of all groups of rows, or of each group of depth.
  GPU_FUNCTION std::int32_t row_blocks(const DeviceProduct& p, int block_rows) const {
    return p.groups == Groups::rows ? first_block[p.batch]
                                    : static_cast<std::int32_t>((p.m + block_rows - 1) / block_rows);
  }

  // Finds what find_part() does, of a block that there is.
  GPU_FUNCTION void find(const DeviceProduct& p, std::int32_t index, std::int32_t of_batch, int block_rows,
                         int block_columns, std::int32_t band, Part& part) const {
    const BlockPlace place = BlockPlace::of(p, index, block_columns, row_blocks(p, block_rows), band);
    part = {};
    part.column = place.column;
    int group = of_batch;
    auto block = static_cast<std::int32_t>(place.row_block);
    if (p.groups == Groups::rows) {
      // The last group that begins at the block or before it: empty ones begin where the next does.
      int end = static_cast<int>(p.batch);
      for (group = 0; end - group > 1;) {
        const int middle = (group + end) / 2;
        if (first_block[middle] <= block)
          group = middle;
        else
          end = middle;
      }
      block -= first_block[group];
    }
    put_group(p, group, first_row[group], first_row[group + 1], std::int64_t{block} * block_rows, part);
  }
};

}  // namespace switchyard::gpu
