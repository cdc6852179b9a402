// Matrix products on Hopper's tensor cores (PTX ISA: wgmma). A block of threads makes 128 x 256 of C, or 128
// x 128 of a narrower one: two warpgroups, 64 rows each, in steps of 64 of the depth. The reference is
// tensor_product in product.cu, which has the same tiles in shared memory.
#include "kernels/cuda/wgmma_store.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kRows = 128, kDepthStep = 64, kWgmmaThreads = 256, kWgmmaStages = 4, kGroupThreads = 128;
constexpr int kRowsOfGroup = 64;

constexpr std::size_t shared_bytes_for(int columns) {
  return static_cast<std::size_t>(kWgmmaStages) * (kRows + columns) * kDepthStep * sizeof(bfloat16) + 1024;
}

template <typename C, bool transpose_a, bool transpose_b, int columns>
GPU_BLOCK_KERNEL(kWgmmaThreads)
wgmma_blocks(GPU_CONSTANT(DeviceProduct) p, std::int64_t row_blocks) {
#if defined(GPU_HAS_WGMMA)
  constexpr int kATile = kRows * kDepthStep, kBTile = columns * kDepthStep, kStage = kATile + kBTile;
  // Tiles repeat every 1024 bytes.
  auto* const tiles = reinterpret_cast<bfloat16*>(
      (reinterpret_cast<std::uintptr_t>(dynamic_shared<unsigned char>()) + 1023) / 1024 * 1024);
  Part part;
  if (!find_part(p, block_index(), block_index_z(), kRows, columns, row_blocks, part)) return;
  const int steps = depth_steps(p, part, kDepthStep);
  const auto load_step = [&](int step) {
    const auto [which, depth, end] = depth_step(p, part, step, kDepthStep);
    const ProductTerm& term = p.terms[which];
    bfloat16* const a_tile = tiles + step % kWgmmaStages * kStage;
    bfloat16* const b_tile = a_tile + kATile;
    const auto* const a = static_cast<const bfloat16*>(term.a) + part.a_offset;
    const auto* const b = static_cast<const bfloat16*>(term.b) + part.b_offset;
    if constexpr (transpose_a)
      load_tile<kDepthStep, kRows, kWgmmaThreads, true>(
          a_tile, {a, term.a_rows, term.lda, depth, end, part.row, part.rows_end});
    else
      load_tile<kRows, kDepthStep, kWgmmaThreads, true>(
          a_tile, {a, term.a_rows, term.lda, part.row, part.rows_end, depth, end});
    if constexpr (transpose_b)
      load_tile<columns, kDepthStep, kWgmmaThreads, true>(
          b_tile, {b, nullptr, term.ldb, part.column, p.n, depth, end});
    else
      load_tile<kDepthStep, columns, kWgmmaThreads, true>(
          b_tile, {b, nullptr, term.ldb, depth, end, part.column, p.n});
  };
  const int group = shuffle(thread_index() / kGroupThreads, 0);
  constexpr std::uint32_t kBlockBytes = kDepthStep * kTileWidth * sizeof(bfloat16);
  float sums[columns / 2];
  GPU_UNROLL
  for (float& sum : sums) sum = 0;
  // Two steps are on their way while one is multiplied; the fourth stage is what the
  // last products may still read.
  for (int step = 0; step < kWgmmaStages - 2; ++step) {
    if (step < steps) load_step(step);
    end_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kWgmmaStages - 3>();
    show_to_tensor_cores();
    barrier();
    const bfloat16* const a_tile = tiles + step % kWgmmaStages * kStage;
    const bfloat16* const b_tile = a_tile + kATile;
    begin_multiplying();
    GPU_UNROLL
    for (int depth = 0; depth < kDepthStep; depth += 16) {
      const bfloat16* const a = transpose_a ? a_tile + group * kDepthStep * kTileWidth + depth * kTileWidth
                                            : a_tile + group * kRowsOfGroup * kTileWidth + depth;
      const bfloat16* const b = b_tile + (transpose_b ? depth : depth * kTileWidth);
      multiply<columns, transpose_a ? 1 : 0, transpose_b ? 0 : 1>(sums, matrix_at(a, kBlockBytes),
                                                                  matrix_at(b, kBlockBytes));
    }
    end_multiplying();
    if (step + kWgmmaStages - 2 < steps) load_step(step + kWgmmaStages - 2);
    end_copies();
    wait_for_products<1>();
  }
  wait_for_products<0>();
  wait_for_copies<0>();
  store_sums<C, columns>(p, part, part.row + thread_index() / kWarp * 16, sums);
#endif
}

template <typename C, bool transpose_a, bool transpose_b, int columns>
void run_columns(const DeviceProduct& p) {
  launch(product_launch(p, kRows, columns, kWgmmaThreads, shared_bytes_for(columns)),
         wgmma_blocks<C, transpose_a, transpose_b, columns>, p, row_blocks_of(p, kRows));
}

template <typename C, bool transpose_a, bool transpose_b>
void run_layout(const DeviceProduct& p) {
  p.n > 128 ? run_columns<C, transpose_a, transpose_b, 256>(p)
            : run_columns<C, transpose_a, transpose_b, 128>(p);
}

}  // namespace

void wgmma_product(const DeviceProduct& p) {
  if (p.is_empty()) return;
  with_float_type(p.c_dtype, [&]<typename C>(C) {
    if (p.transpose_a)
      p.transpose_b ? run_layout<C, true, true>(p) : run_layout<C, true, false>(p);
    else
      p.transpose_b ? run_layout<C, false, true>(p) : run_layout<C, false, false>(p);
  });
}

const char* wgmma_refuses(const DeviceProduct& p) {
  if (p.dtype != DType::bf16) return "the operands are not bfloat16";
  return chunks_are_aligned(p) ? nullptr : "operands are not aligned to 16 bytes";
}

}  // namespace switchyard::gpu
