// The common parts of matrix product kernels: where a block of threads works, and how operands come into
// shared memory (product.h says what is computed).
#pragma once

#include <algorithm>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/tiles.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {

// The work of a block of threads: its rows of C, and the operands of its group.
struct Part {
  std::int64_t group = 0;              // or number in the batch
  std::int64_t row = 0, rows_end = 0;  // of C: the first, and the end of what may be written
  std::int64_t column = 0;
  std::int64_t b_offset = 0, c_offset = 0, bias_offset = 0, a_offset = 0;  // elements
  std::int64_t depth_begin = 0, depth_end = 0;  // stored rows of a and b, of groups of depth
};

// Blocks of columns that are neighbours in the order of blocks, so that a wave of blocks
// reads few rows of both.
constexpr std::int64_t kBand = 16;

// Which block of rows, and which column, block `index` of a product has.
struct BlockPlace {
  std::int64_t row_block, column;
  // Index: the type of numbers of blocks. Those of 64 bits take many registers to divide.
  template <typename Index>
  GPU_FUNCTION static BlockPlace of(const DeviceProduct& p, Index index, int block_columns, Index row_blocks,
                                    Index in_band) {
    const auto column_blocks = static_cast<Index>((p.n + block_columns - 1) / block_columns);
    const Index band = index / (in_band * row_blocks);
    const Index left = column_blocks - band * in_band, width = left < in_band ? left : in_band;
    const Index within = index - band * in_band * row_blocks;
    return {within / width, static_cast<std::int64_t>(band * in_band + within % width) * block_columns};
  }
};

// The part of a group that has rows, or depth, [first, end), from its row `row` on.
GPU_FUNCTION void put_group(const DeviceProduct& p, std::int64_t group, std::int64_t first, std::int64_t end,
                            std::int64_t row, Part& part) {
  part.group = group;
  if (p.groups == Groups::rows) {
    part.row = first + row;
    part.rows_end = end;
    part.b_offset = group * p.b_stride;
    part.bias_offset = group * p.bias_stride;
  } else {
    part.row = row;
    part.rows_end = p.m;
    part.depth_begin = first;
    part.depth_end = end;
    part.c_offset = group * p.c_stride;
  }
}

// Returns the part of block `index` of product `of_batch`, without groups.
template <typename Index>
GPU_FUNCTION Part part_of_batch(const DeviceProduct& p, Index index, Index of_batch, int block_rows,
                                int block_columns, Index band) {
  const auto row_blocks = static_cast<Index>((p.m + block_rows - 1) / block_rows);
  const BlockPlace place = BlockPlace::of(p, index, block_columns, row_blocks, band);
  return {.group = of_batch,
          .row = place.row_block * block_rows,
          .rows_end = p.m,
          .column = place.column,
          .b_offset = of_batch * p.b_stride,
          .c_offset = of_batch * p.c_stride,
          .a_offset = of_batch * p.a_stride};
}

// Finds the group of block `index` of product `of_batch`, and where in it the block is, for all threads of a
// warp. False: there is nothing to do.
GPU_FUNCTION bool find_part(const DeviceProduct& p, std::int64_t index, std::int64_t of_batch, int block_rows,
                            int block_columns, std::int64_t row_blocks, Part& part,
                            std::int64_t band = kBand) {
  if (p.groups == Groups::none) {
    part = part_of_batch(p, index, of_batch, block_rows, block_columns, band);
    return true;
  }
  const BlockPlace place = BlockPlace::of(p, index, block_columns, row_blocks, band);
  part = {};
  part.column = place.column;
  // The warp looks through the groups, 32 at a time.
  const bool of_rows = p.groups == Groups::rows;
  const int lane = thread_index() % kWarp;
  const std::int64_t wanted = of_rows ? place.row_block : of_batch;
  std::int64_t rows_before = 0, blocks_before = 0;
  for (std::int64_t first = 0; first < p.batch; first += kWarp) {
    const std::int64_t group = first + lane;
    const std::int64_t size = group < p.batch ? p.group_sizes[group] : 0;
    const std::int64_t blocks = of_rows ? (size + block_rows - 1) / block_rows : (group < p.batch ? 1 : 0);
    std::int64_t rows_to = size, blocks_to = blocks;  // sums up to this lane
    for (int by = 1; by < kWarp; by *= 2) {
      const std::int64_t more_rows = shuffle_up(rows_to, by), more_blocks = shuffle_up(blocks_to, by);
      if (lane >= by) {
        rows_to += more_rows;
        blocks_to += more_blocks;
      }
    }
    const std::int64_t begin = blocks_before + blocks_to - blocks;
    const std::uint32_t found = ballot(wanted >= begin && wanted < begin + blocks);
    if (found != 0) {
      const int finder = first_bit(found);
      const std::int64_t first_row = rows_before + shuffle(rows_to - size, finder);
      const std::int64_t end = first_row + shuffle(size, finder), before = shuffle(begin, finder);
      put_group(p, first + finder, first_row, end, (of_rows ? wanted - before : place.row_block) * block_rows,
                part);
      return true;
    }
    rows_before += shuffle(rows_to, kWarp - 1);
    blocks_before += shuffle(blocks_to, kWarp - 1);
  }
  return false;
}

// Products of one a as the arguments of a launch (product.h).
struct ProductList {
  DeviceProduct products[kMostProducts];
  // The blocks of those before; behind the last product that of all.
  std::int32_t first_block[kMostProducts + 1];

  std::int32_t blocks() const { return first_block[kMostProducts]; }
  // The product that has the block, of those that there are.
  GPU_FUNCTION int product_of(std::int32_t block) const {
    int found = 0;
    GPU_UNROLL
    for (int i = 1; i < kMostProducts; ++i) found += block >= first_block[i] ? 1 : 0;
    return found;
  }
};

// A step of the depth: its term, and which of the term's inputs it may read. The steps of a term follow those
// of the term before.
struct DepthStep {
  int term, begin, end;
};

// How many steps of `size` inputs the depth of all terms has, or that of the part's group.
GPU_FUNCTION int depth_steps(const DeviceProduct& p, const Part& part, int size) {
  if (p.groups == Groups::depth)
    return (static_cast<int>(part.depth_end - part.depth_begin) + size - 1) / size;
  int steps = 0;
  for (int t = 0; t < p.term_count; ++t) steps += (static_cast<int>(p.terms[t].k) + size - 1) / size;
  return steps;
}

GPU_FUNCTION DepthStep depth_step(const DeviceProduct& p, const Part& part, int step, int size) {
  if (p.groups == Groups::depth)
    return {0, static_cast<int>(part.depth_begin) + step * size, static_cast<int>(part.depth_end)};
  int term = 0;
  for (; term + 1 < p.term_count; ++term) {
    const int steps = (static_cast<int>(p.terms[term].k) + size - 1) / size;
    if (step < steps) break;
    step -= steps;
  }
  return {term, step * size, static_cast<int>(p.terms[term].k)};
}

// ---- Tiles of bfloat16

constexpr int kChunk = 8;       // elements that are copied at once: 16 bytes
constexpr int kTileWidth = 64;  // elements of a row of shared memory: 128 bytes, all its banks

// Returns the offset, in elements, of chunk `chunk` of stored row `row`, in blocks of 64 columns of `height`
// rows each. Chunks of a row change places by the row's number, so that eight rows of one chunk are in
// different banks; it is the layout that wgmma calls 128-byte swizzle.
template <int height>
GPU_FUNCTION int place_of(int row, int chunk) {
  return (chunk / 8 * height + row) * kTileWidth + (chunk % 8 ^ row % 8) * kChunk;
}

// The source of an operand's tile: some columns of some stored rows.
struct TileSource {
  const bfloat16* data;
  const std::int32_t* rows;         // looks stored rows up; may be null
  std::int64_t leading;             // elements from a stored row to the next
  std::int64_t row, row_end;        // the first stored row of the tile, and the end of all
  std::int64_t column, column_end;  // likewise
};

// Starts to copy a tile of `height` stored rows of `width` elements; what is outside becomes 0. All `threads`
// of the block call. Without `aligned` chunks it copies element by element, and is done when it returns.
template <int height, int width, int threads, bool aligned>
GPU_FUNCTION void load_tile(bfloat16* tile, const TileSource& from) {
  constexpr int kChunks = width / kChunk, kRows = threads / kChunks;  // rows that are copied at once
  static_assert(threads % kChunks == 0 && height % kRows == 0);
  const int first = thread_index() / kChunks, chunk = thread_index() % kChunks;
  const std::int64_t column = from.column + chunk * kChunk, left = from.column_end - column;
  const int count = left < 0 ? 0 : left > kChunk ? kChunk : static_cast<int>(left);
  const bfloat16* source = from.data + (from.row + first) * from.leading + column;
  GPU_UNROLL
  for (int i = 0; i < height / kRows; ++i) {
    const int row = first + i * kRows;
    const bool inside = from.row + row < from.row_end;
    if (from.rows != nullptr && inside && count > 0)
      source = from.data + from.rows[from.row + row] * from.leading + column;
    bfloat16* const to = tile + place_of<height>(row, chunk);
    if constexpr (aligned) {
      const int bytes = inside ? count * static_cast<int>(sizeof(bfloat16)) : 0;
      copy_async(to, bytes > 0 ? source : from.data, bytes);
    } else {
      for (int j = 0; j < kChunk; ++j) {
        bfloat16 value;
        value.bits = 0;
        if (inside && j < count) value = source[j];
        to[j] = value;
      }
    }
    if (from.rows == nullptr) source += kRows * from.leading;
  }
}

// ---- On the host

// Blocks of rows: at most, where groups of rows end within blocks.
inline std::int64_t row_blocks_of(const DeviceProduct& p, int block) {
  return divide_up(p.m, block) + (p.groups == Groups::rows ? p.batch : 0);
}

inline Launch product_launch(const DeviceProduct& p, int block_rows, int block_columns, int threads,
                             std::size_t shared_bytes) {
  return {.blocks = row_blocks_of(p, block_rows) * divide_up(p.n, block_columns),
          .threads = threads,
          .shared_bytes = shared_bytes,
          .blocks_z = p.groups == Groups::rows ? 1 : static_cast<int>(p.batch)};
}

// Lists the products, of which `blocks_of` says how many blocks of threads each has.
template <typename BlocksOf>
ProductList list_of(DeviceProducts args, const BlocksOf& blocks_of) {
  ProductList list{};
  for (int i = 0; i < kMostProducts; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (at < args.size()) list.products[i] = args[at];
    list.first_block[i + 1] =
        list.first_block[i] +
        (at < args.size() && !args[at].is_empty() ? static_cast<std::int32_t>(blocks_of(args[at])) : 0);
  }
  return list;
}

// Launches a kernel of blocks of that size, which takes the list and the number of blocks of rows.
template <typename Kernel>
void launch_list(DeviceProducts args, int block_rows, int block_columns, int threads,
                 std::size_t shared_bytes, Kernel kernel) {
  const DeviceProduct& form = args.front();
  const std::int64_t row_blocks = row_blocks_of(form, block_rows);
  const ProductList list =
      list_of(args, [&](const DeviceProduct& p) { return row_blocks * divide_up(p.n, block_columns); });
  Launch how = product_launch(form, block_rows, block_columns, threads, shared_bytes);
  how.blocks = list.blocks();
  launch(how, kernel, list, row_blocks);
}

inline bool are_empty(DeviceProducts args) {
  return std::ranges::all_of(args, &DeviceProduct::is_empty);
}

// The first reason not to take one of the products.
template <typename Refuses>
const char* first_refusal(DeviceProducts args, const Refuses& refuses) {
  for (const DeviceProduct& one : args)
    if (const char* const reason = refuses(one)) return reason;
  return nullptr;
}

// True where operands lie as copies of 16 bytes need them.
inline bool chunks_are_aligned(const DeviceProduct& p) {
  const auto fits = [](const void* address, std::int64_t leading, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && leading % kChunk == 0 &&
           stride % kChunk == 0;
  };
  for (int t = 0; t < p.term_count; ++t) {
    const ProductTerm& term = p.terms[t];
    if (!fits(term.a, term.lda, p.a_stride) || !fits(term.b, term.ldb, p.b_stride)) return false;
  }
  return true;
}

}  // namespace switchyard::gpu
