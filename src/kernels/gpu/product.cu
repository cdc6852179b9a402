// Matrix products, one kernel a dtype: bfloat16 on tensor cores, float32 on the units for it. A block of
// threads computes one block of C, over all of its depth, so a result does not depend on how the work is
// shared out.
#include "kernels/gpu/code.h"
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/product.h"
#include "kernels/gpu/tiles.h"

namespace switchyard::gpu {
namespace {

// What a block of threads works on: which rows of C, the operands of its group.
struct Part {
  std::int64_t row = 0, rows_end = 0;  // of C: the first, and the end of what may be written
  std::int64_t column = 0;
  std::int64_t b_offset = 0, c_offset = 0, bias_offset = 0, a_offset = 0;  // elements
  std::int64_t depth_begin = 0, depth_end = 0;  // stored rows of a and b, of groups of depth
};

// Blocks of columns that are neighbours in the order of blocks, so that a wave of blocks reads few rows of
// both.
constexpr std::int64_t kBand = 16;

// Finds the group of this block of threads, and where in it the block is. False: there is nothing to do.
// `scratch`: 4 elements of shared memory.
GPU_FUNCTION bool find_part(const Product& p, int block_rows, int block_columns, std::int64_t row_blocks,
                            std::int64_t* scratch, Part& part) {
  const std::int64_t column_blocks = (p.n + block_columns - 1) / block_columns;
  const std::int64_t band = block_index() / (kBand * row_blocks);
  const std::int64_t left = column_blocks - band * kBand, width = left < kBand ? left : kBand;
  const std::int64_t within = block_index() - band * kBand * row_blocks;
  std::int64_t row_block = within / width;
  part.column = (band * kBand + within % width) * block_columns;
  if (p.groups == Groups::none) {
    const std::int64_t i = block_index_z();
    part.row = row_block * block_rows;
    part.rows_end = p.m;
    part.a_offset = i * p.a_stride;
    part.b_offset = i * p.b_stride;
    part.c_offset = i * p.c_stride;
    return true;
  }
  // One warp looks through the groups, 32 at a time.
  if (thread_index() < kWarp) {
    const int lane = thread_index();
    std::int64_t rows_before = 0, blocks_before = 0;
    if (lane == 0) scratch[0] = -1;
    warp_barrier();
    const std::int64_t wanted = p.groups == Groups::rows ? row_block : block_index_z();
    for (std::int64_t first = 0; first < p.batch; first += kWarp) {
      const std::int64_t group = first + lane;
      const std::int64_t size = group < p.batch ? p.group_sizes[group] : 0;
      const std::int64_t blocks =
          p.groups == Groups::rows ? (size + block_rows - 1) / block_rows : (group < p.batch ? 1 : 0);
      std::int64_t rows_to = size, blocks_to = blocks;  // sums up to this lane
      for (int by = 1; by < kWarp; by *= 2) {
        const std::int64_t more_rows = shuffle_up(rows_to, by), more_blocks = shuffle_up(blocks_to, by);
        if (lane >= by) {
          rows_to += more_rows;
          blocks_to += more_blocks;
        }
      }
      const std::int64_t begin = blocks_before + blocks_to - blocks;
      if (wanted >= begin && wanted < begin + blocks) {
        scratch[0] = group;
        scratch[1] = rows_before + rows_to - size;
        scratch[2] = size;
        scratch[3] = wanted - begin;
      }
      rows_before += shuffle(rows_to, kWarp - 1);
      blocks_before += shuffle(blocks_to, kWarp - 1);
    }
  }
  barrier();
  const std::int64_t group = scratch[0], begin = scratch[1], size = scratch[2], block = scratch[3];
  if (group < 0) return false;
  if (p.groups == Groups::rows) {
    part.row = begin + block * block_rows;
    part.rows_end = begin + size;
    part.b_offset = group * p.b_stride;
    part.bias_offset = group * p.bias_stride;
  } else {
    part.row = row_block * block_rows;
    part.rows_end = p.m;
    part.depth_begin = begin;
    part.depth_end = begin + size;
    part.c_offset = group * p.c_stride;
  }
  return true;
}

// ---- float32

constexpr int kPlainBlock = 64, kPlainDepth = 16, kPlainThreads = 256, kPlainPitch = kPlainBlock + 4;

// Any dtype of the operands, in float32.
template <typename T, typename C>
GPU_KERNEL plain_product(Product p, std::int64_t row_blocks) {
  GPU_SHARED(float, a_tile, kPlainDepth* kPlainPitch);
  GPU_SHARED(float, b_tile, kPlainDepth* kPlainPitch);
  GPU_SHARED(std::int64_t, scratch, 4);
  Part part;
  if (!find_part(p, kPlainBlock, kPlainBlock, row_blocks, scratch, part)) return;
  const int thread = thread_index(), row = thread / 16 * 4, column = thread % 16 * 4;
  float sums[4][4] = {};
  for (int t = 0; t < p.term_count; ++t) {
    const ProductTerm& term = p.terms[t];
    const T* const a = static_cast<const T*>(term.a) + part.a_offset;
    const T* const b = static_cast<const T*>(term.b) + part.b_offset;
    const bool grouped_depth = p.groups == Groups::depth;
    const std::int64_t begin = grouped_depth ? part.depth_begin : 0,
                       end = grouped_depth ? part.depth_end : term.k;
    for (std::int64_t k = begin; k < end; k += kPlainDepth) {
      barrier();
      for (int i = thread; i < kPlainBlock * kPlainDepth; i += kPlainThreads) {
        // Neighbouring threads read neighbours in memory.
        const int inner = p.transpose_a ? i % kPlainBlock : i / kPlainDepth;  // row of C
        const int depth = p.transpose_a ? i / kPlainBlock : i % kPlainDepth;
        const std::int64_t r = part.row + inner, d = k + depth;
        float value = 0;
        if (r < part.rows_end && d < end) {
          const std::int64_t stored = p.transpose_a ? d : r, at = p.transpose_a ? r : d;
          value = to_float(a[(term.a_rows == nullptr ? stored : term.a_rows[stored]) * p.lda + at]);
        }
        a_tile[depth * kPlainPitch + inner] = value;
      }
      for (int i = thread; i < kPlainBlock * kPlainDepth; i += kPlainThreads) {
        const int inner = p.transpose_b ? i / kPlainDepth : i % kPlainBlock;  // column of C
        const int depth = p.transpose_b ? i % kPlainDepth : i / kPlainBlock;
        const std::int64_t c = part.column + inner, d = k + depth;
        b_tile[depth * kPlainPitch + inner] =
            c < p.n && d < end ? to_float(b[p.transpose_b ? c * p.ldb + d : d * p.ldb + c]) : 0.0f;
      }
      barrier();
      for (int depth = 0; depth < kPlainDepth; ++depth) {
        float x[4], y[4];
        for (int i = 0; i < 4; ++i) {
          x[i] = a_tile[depth * kPlainPitch + row + i];
          y[i] = b_tile[depth * kPlainPitch + column + i];
        }
        for (int i = 0; i < 4; ++i) {
          for (int j = 0; j < 4; ++j) sums[i][j] += x[i] * y[j];
        }
      }
    }
  }
  C* const c = static_cast<C*>(p.c) + part.c_offset;
  const T* const bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + part.bias_offset;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      const std::int64_t r = part.row + row + i, at = part.column + column + j;
      if (r >= part.rows_end || at >= p.n) continue;
      float value = sums[i][j];
      if (bias != nullptr) value += to_float(bias[at]);
      if (p.accumulate) value += to_float(c[r * p.ldc + at]);
      c[r * p.ldc + at] = from_float<C>(value);
    }
  }
}

// ---- bfloat16 on tensor cores

// A block of threads makes 128 x 128 of C: 8 warps, 64 x 32 each, in steps of 64 of the depth.
constexpr int kBlock = 128, kDepth = 64, kThreads = 256, kStages = 4, kChunk = 8;
constexpr int kWarpRows = 64, kWarpColumns = 32;
constexpr int kTileElements = kBlock * kDepth;
constexpr std::size_t kTileBytes = kTileElements * sizeof(bfloat16);
constexpr std::size_t kSharedBytes = 2 * kStages * kTileBytes;

// An operand's tile lies in shared memory as it does in memory: `outer` stored rows of `width` elements, in
// chunks of 8 (16 bytes) that change places by the row, so that eight rows of one chunk are in different
// banks.
template <int width>
GPU_FUNCTION int place_of(int stored_row, int chunk) {
  return stored_row * width + (chunk ^ (stored_row % 8)) * kChunk;
}

// Where an operand's tile comes from.
struct TileSource {
  const bfloat16* data;
  const std::int32_t* rows;         // looks stored rows up; may be null
  std::int64_t leading;             // elements from a stored row to the next
  std::int64_t row, row_end;        // stored rows: the first of the tile, and the end
  std::int64_t column, column_end;  // elements of a row, likewise
};

// Copies a tile of `height` stored rows of `width` elements; what is outside becomes 0.
template <int height, int width, bool aligned>
GPU_FUNCTION void load_tile(bfloat16* tile, const TileSource& from) {
  constexpr int kChunks = width / kChunk;
  for (int i = thread_index(); i < height * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    const std::int64_t stored = from.row + row, column = from.column + chunk * kChunk;
    bfloat16* const to = tile + place_of<width>(row, chunk);
    std::int64_t count = stored < from.row_end ? from.column_end - column : 0;
    count = count < 0 ? 0 : count > kChunk ? kChunk : count;
    const bfloat16* source = from.data;
    if (count > 0) source += (from.rows == nullptr ? stored : from.rows[stored]) * from.leading + column;
    if constexpr (aligned) {
      copy_async(to, source, static_cast<int>(count) * static_cast<int>(sizeof(bfloat16)));
    } else {
      for (int j = 0; j < kChunk; ++j) {
        bfloat16 value;
        value.bits = 0;
        if (j < count) value = source[j];
        to[j] = value;
      }
    }
  }
}

// Of one operand, for the warp's rows (columns) of C from `outer` on and 16 of the depth from `depth` on:
// four tiles, those of 8 rows at depth 0, of the next 8 rows, and the same at depth 8.
template <bool depth_first>
GPU_FUNCTION void load_fragment(const bfloat16* tile, int outer, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8, row = lane % 8;
  if constexpr (depth_first) {  // stored [depth][outer]: tiles come transposed
    const int stored = depth + which / 2 * 8 + row, at = outer + which % 2 * 8;
    load_tiles_transposed(tile + place_of<kBlock>(stored, at / kChunk), tiles);
  } else {  // stored [outer][depth]
    const int stored = outer + which % 2 * 8 + row, at = depth + which / 2 * 8;
    load_tiles(tile + place_of<kDepth>(stored, at / kChunk), tiles);
  }
}

template <typename C, bool transpose_a, bool transpose_b, bool aligned>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads, 1)
#endif
    tensor_product(Product p, std::int64_t row_blocks) {
  GPU_SHARED(std::int64_t, scratch, 4);
  auto* const tiles = dynamic_shared<bfloat16>();
  Part part;
  if (!find_part(p, kBlock, kBlock, row_blocks, scratch, part)) return;
  const bool grouped_depth = p.groups == Groups::depth;
  const auto begin_of = [&](int) { return grouped_depth ? part.depth_begin : std::int64_t{0}; };
  const auto end_of = [&](int t) { return grouped_depth ? part.depth_end : p.terms[t].k; };
  const auto steps_of = [&](int t) { return (end_of(t) - begin_of(t) + kDepth - 1) / kDepth; };
  const std::int64_t first_steps = steps_of(0), steps = first_steps + (p.term_count > 1 ? steps_of(1) : 0);
  const auto load_step = [&](std::int64_t step) {
    const int t = step < first_steps ? 0 : 1;
    const ProductTerm& term = p.terms[t];
    const std::int64_t depth = begin_of(t) + (t == 0 ? step : step - first_steps) * kDepth, end = end_of(t);
    bfloat16* const a_tile = tiles + step % kStages * 2 * kTileElements;
    bfloat16* const b_tile = a_tile + kTileElements;
    const auto* const a = static_cast<const bfloat16*>(term.a) + part.a_offset;
    const auto* const b = static_cast<const bfloat16*>(term.b) + part.b_offset;
    if constexpr (transpose_a)
      load_tile<kDepth, kBlock, aligned>(a_tile,
                                         {a, term.a_rows, p.lda, depth, end, part.row, part.rows_end});
    else
      load_tile<kBlock, kDepth, aligned>(a_tile,
                                         {a, term.a_rows, p.lda, part.row, part.rows_end, depth, end});
    if constexpr (transpose_b)
      load_tile<kBlock, kDepth, aligned>(b_tile, {b, nullptr, p.ldb, part.column, p.n, depth, end});
    else
      load_tile<kDepth, kBlock, aligned>(b_tile, {b, nullptr, p.ldb, depth, end, part.column, p.n});
  };
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;
  float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < steps) load_step(stage);
    end_copies();
  }
  for (std::int64_t step = 0; step < steps; ++step) {
    wait_for_copies<kStages - 2>();
    barrier();  // everybody's copies are there, and what the next copies overwrite has been read
    if (step + kStages - 1 < steps) load_step(step + kStages - 1);
    end_copies();
    const bfloat16* const a_tile = tiles + step % kStages * 2 * kTileElements;
    const bfloat16* const b_tile = a_tile + kTileElements;
    GPU_UNROLL
    for (int depth = 0; depth < kDepth; depth += 16) {
      std::uint32_t a[kWarpRows / 16][4], b[kWarpColumns / 16][4];
      GPU_UNROLL
      for (int i = 0; i < kWarpRows / 16; ++i)
        load_fragment<transpose_a>(a_tile, warp_row + i * 16, depth, a[i]);
      GPU_UNROLL
      for (int j = 0; j < kWarpColumns / 16; ++j)
        load_fragment<!transpose_b>(b_tile, warp_column + j * 16, depth, b[j]);
      GPU_UNROLL
      for (int i = 0; i < kWarpRows / 16; ++i) {
        GPU_UNROLL
        for (int j = 0; j < kWarpColumns / 8; ++j)
          multiply_tiles(sums[i][j], a[i], b[j / 2][j % 2], b[j / 2][j % 2 + 2]);
      }
    }
  }
  wait_for_copies<0>();
  C* const c = static_cast<C*>(p.c) + part.c_offset;
  const bfloat16* const bias =
      p.bias == nullptr ? nullptr : static_cast<const bfloat16*>(p.bias) + part.bias_offset;
  GPU_UNROLL
  for (int i = 0; i < kWarpRows / 16; ++i) {
    GPU_UNROLL
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        const std::int64_t row = part.row + warp_row + i * 16 + half * 8 + lane / 4;
        const std::int64_t column = part.column + warp_column + j * 8 + lane % 4 * 2;
        if (row >= part.rows_end) continue;
        C* const to = c + row * p.ldc + column;
        float values[2] = {sums[i][j][half * 2], sums[i][j][half * 2 + 1]};
        for (int e = 0; e < 2; ++e) {
          if (column + e >= p.n) continue;
          if (bias != nullptr) values[e] += to_float(bias[column + e]);
          if (p.accumulate) values[e] += to_float(to[e]);
        }
        if (column + 1 < p.n && (p.ldc % 2 == 0) &&
            reinterpret_cast<std::uintptr_t>(c) % (2 * sizeof(C)) == 0) {
          *reinterpret_cast<Vector<C, 2>*>(to) = {from_float<C>(values[0]), from_float<C>(values[1])};
        } else {
          for (int e = 0; e < 2; ++e) {
            if (column + e < p.n) to[e] = from_float<C>(values[e]);
          }
        }
      }
    }
  }
}

bool chunks_are_aligned(const Product& p) {
  const auto fits = [](const void* address, std::int64_t leading, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0 && leading % kChunk == 0 &&
           stride % kChunk == 0;
  };
  for (int t = 0; t < p.term_count; ++t) {
    if (!fits(p.terms[t].a, p.lda, p.a_stride) || !fits(p.terms[t].b, p.ldb, p.b_stride)) return false;
  }
  return true;
}

// Blocks of rows: at most, where groups of rows end within blocks.
std::int64_t row_blocks_of(const Product& p, int block) {
  return divide_up(p.m, block) + (p.groups == Groups::rows ? p.batch : 0);
}

Launch launch_of(const Product& p, int block, int threads, std::size_t shared_bytes) {
  return {.blocks = row_blocks_of(p, block) * divide_up(p.n, block),
          .threads = threads,
          .shared_bytes = shared_bytes,
          .blocks_z = p.groups == Groups::rows ? 1 : static_cast<int>(p.batch)};
}

template <typename C, bool transpose_a, bool transpose_b>
void run_tensor_product(const Product& p) {
  const Launch how = launch_of(p, kBlock, kThreads, kSharedBytes);
  const std::int64_t row_blocks = row_blocks_of(p, kBlock);
  if (chunks_are_aligned(p))
    launch(how, tensor_product<C, transpose_a, transpose_b, true>, p, row_blocks);
  else
    launch(how, tensor_product<C, transpose_a, transpose_b, false>, p, row_blocks);
}

}  // namespace

void run_product(const Product& p) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  with_float_type(p.c_dtype, [&]<typename C>(C) {
    if (p.dtype == DType::f32) {
      launch(launch_of(p, kPlainBlock, kPlainThreads, 0), plain_product<float, C>, p,
             row_blocks_of(p, kPlainBlock));
    } else if (p.transpose_a) {
      p.transpose_b ? run_tensor_product<C, true, true>(p) : run_tensor_product<C, true, false>(p);
    } else {
      p.transpose_b ? run_tensor_product<C, false, true>(p) : run_tensor_product<C, false, false>(p);
    }
  });
}

}  // namespace switchyard::gpu
