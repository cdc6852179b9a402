// Matrix products, one kernel a dtype: bfloat16 on tensor cores, float32 on the units for it. A block of
// threads computes one block of C, over all of its depth, so a result does not depend on how
// the work is shared out.
#include "kernels/cuda/portable.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {
namespace {

// ---- float32

constexpr int kPlainBlock = 64, kPlainDepth = 16, kPlainThreads = 256, kPlainPitch = kPlainBlock + 4;

// Any dtype of the operands, in float32.
template <typename T, typename C>
GPU_KERNEL plain_blocks(DeviceProduct p, std::int64_t row_blocks) {
  GPU_SHARED(float, a_tile, kPlainDepth* kPlainPitch);
  GPU_SHARED(float, b_tile, kPlainDepth* kPlainPitch);
  Part part;
  if (!find_part(p, block_index(), block_index_z(), kPlainBlock, kPlainBlock, row_blocks, part)) return;
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
          value = to_float(a[(term.a_rows == nullptr ? stored : term.a_rows[stored]) * term.lda + at]);
        }
        a_tile[depth * kPlainPitch + inner] = value;
      }
      for (int i = thread; i < kPlainBlock * kPlainDepth; i += kPlainThreads) {
        const int inner = p.transpose_b ? i / kPlainDepth : i % kPlainBlock;  // column of C
        const int depth = p.transpose_b ? i % kPlainDepth : i / kPlainBlock;
        const std::int64_t c = part.column + inner, d = k + depth;
        b_tile[depth * kPlainPitch + inner] =
            c < p.n && d < end ? to_float(b[p.transpose_b ? c * term.ldb + d : d * term.ldb + c]) : 0.0f;
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
constexpr int kBlock = 128, kDepth = 64, kThreads = 256, kStages = 4;
constexpr int kWarpRows = 64, kWarpColumns = 32;
constexpr int kTileElements = kBlock * kDepth;
constexpr std::size_t kTileBytes = kTileElements * sizeof(bfloat16);
constexpr std::size_t kSharedBytes = 2 * kStages * kTileBytes;

// Of one operand, for the warp's rows (columns) of C from `outer` on and 16 of the depth from `depth` on:
// four tiles, those of 8 rows at depth 0, of the next 8 rows, and the same at depth 8.
template <bool depth_first>
GPU_FUNCTION void load_fragment(const bfloat16* tile, int outer, int depth, std::uint32_t (&tiles)[4]) {
  const int lane = thread_index() % kWarp, which = lane / 8, row = lane % 8;
  if constexpr (depth_first) {  // stored [depth][outer]: tiles come transposed
    const int stored = depth + which / 2 * 8 + row, at = outer + which % 2 * 8;
    load_tiles_transposed(tile + place_of<kDepth>(stored, at / kChunk), tiles);
  } else {  // stored [outer][depth]
    const int stored = outer + which % 2 * 8 + row, at = depth + which / 2 * 8;
    load_tiles(tile + place_of<kBlock>(stored, at / kChunk), tiles);
  }
}

template <typename C, bool transpose_a, bool transpose_b, bool aligned>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads, 1)
#endif
    tensor_blocks(DeviceProduct p, std::int64_t row_blocks) {
  auto* const tiles = dynamic_shared<bfloat16>();
  Part part;
  if (!find_part(p, block_index(), block_index_z(), kBlock, kBlock, row_blocks, part)) return;
  const int steps = depth_steps(p, part, kDepth);
  const auto load_step = [&](int step) {
    const auto [which, depth, end] = depth_step(p, part, step, kDepth);
    const ProductTerm& term = p.terms[which];
    bfloat16* const a_tile = tiles + step % kStages * 2 * kTileElements;
    bfloat16* const b_tile = a_tile + kTileElements;
    const auto* const a = static_cast<const bfloat16*>(term.a) + part.a_offset;
    const auto* const b = static_cast<const bfloat16*>(term.b) + part.b_offset;
    if constexpr (transpose_a)
      load_tile<kDepth, kBlock, kThreads, aligned>(
          a_tile, {a, term.a_rows, term.lda, depth, end, part.row, part.rows_end});
    else
      load_tile<kBlock, kDepth, kThreads, aligned>(
          a_tile, {a, term.a_rows, term.lda, part.row, part.rows_end, depth, end});
    if constexpr (transpose_b)
      load_tile<kBlock, kDepth, kThreads, aligned>(b_tile,
                                                   {b, nullptr, term.ldb, part.column, p.n, depth, end});
    else
      load_tile<kDepth, kBlock, kThreads, aligned>(b_tile,
                                                   {b, nullptr, term.ldb, depth, end, part.column, p.n});
  };
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const int warp_row = warp / 4 * kWarpRows, warp_column = warp % 4 * kWarpColumns;
  float sums[kWarpRows / 16][kWarpColumns / 8][4] = {};
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < steps) load_step(stage);
    end_copies();
  }
  for (int step = 0; step < steps; ++step) {
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

template <typename C, bool transpose_a, bool transpose_b>
void run_tensor_product(const DeviceProduct& p) {
  const Launch how = product_launch(p, kBlock, kBlock, kThreads, kSharedBytes);
  const std::int64_t row_blocks = row_blocks_of(p, kBlock);
  if (chunks_are_aligned(p))
    launch(how, tensor_blocks<C, transpose_a, transpose_b, true>, p, row_blocks);
  else
    launch(how, tensor_blocks<C, transpose_a, transpose_b, false>, p, row_blocks);
}

}  // namespace

bool pays_to_gather(const DeviceProduct& p) {
  const std::int64_t rows = p.groups == Groups::rows ? p.m / p.batch : p.m;
  const std::int64_t depth = p.groups == Groups::depth ? p.depth_rows / p.batch : p.terms[0].k;
  return compute_major() == 9 && p.dtype == DType::bf16 && rows >= 128 && p.n >= 256 && depth >= 64;
}

const char* mma_refuses(const DeviceProduct& p) {
  return p.dtype == DType::bf16 ? nullptr : "the operands are not bfloat16";
}

void mma_product(const DeviceProduct& p) {
  if (p.is_empty()) return;
  with_float_type(p.c_dtype, [&]<typename C>(C) {
    if (p.transpose_a) {
      p.transpose_b ? run_tensor_product<C, true, true>(p) : run_tensor_product<C, true, false>(p);
    } else {
      p.transpose_b ? run_tensor_product<C, false, true>(p) : run_tensor_product<C, false, false>(p);
    }
  });
}

void plain_product(const DeviceProduct& p) {
  if (p.is_empty()) return;
  with_float_type(p.c_dtype, [&]<typename C>(C) {
    launch(product_launch(p, kPlainBlock, kPlainBlock, kPlainThreads, 0), plain_blocks<float, C>, p,
           row_blocks_of(p, kPlainBlock));
  });
}

}  // namespace switchyard::gpu
