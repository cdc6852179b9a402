// One block of C from packed panels of A and B, the same for every micro-kernel.
//
// 1. The depth k is walked in steps of kDepth. For each step the block's rows of A and columns
// of B are packed into
//    panels (kRows rows of A or kColumns columns of B, zero-padded), then every panel pair is multiplied into
//    its kRows x kColumns fp32 tile. Depth steps and tiles depend on k alone, so an element's sum has one
//    order whatever the block.
// 2. With k <= kDepth a tile is finished at once and only one tile of scratch is needed.
// 3. Tails of rows, columns and depth are zeros in the panels; the store writes the valid part only.
//
// A Kernel has: Element (of the panels), kRows, kColumns, kDepthUnit (the packed depth is a multiple of it),
// a Session (set up while a block is computed), pack_a, pack_b and multiply.
#include <algorithm>
#include <cstring>

#include "hwy/aligned_allocator.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/product/cpu/gemm_problem.h"

#ifndef SWITCHYARD_GEMM_SCRATCH_
#define SWITCHYARD_GEMM_SCRATCH_
namespace switchyard::cpu {

// Memory of one thread, kept between calls because mapping it anew costs more than a small product.
struct GemmScratch {
  template <typename T>
  static T* at_least(hwy::AlignedFreeUniquePtr<std::byte[]>& memory, std::size_t& bytes, std::int64_t count) {
    const auto need = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes < need) {
      memory = hwy::AllocateAligned<std::byte>(need);
      bytes = need;
    }
    return reinterpret_cast<T*>(memory.get());
  }
  hwy::AlignedFreeUniquePtr<std::byte[]> a, b, tiles;
  std::size_t a_bytes = 0, b_bytes = 0, tiles_bytes = 0;
};

inline GemmScratch& gemm_scratch() {
  thread_local GemmScratch scratch;
  return scratch;
}

}  // namespace switchyard::cpu
#endif

#if defined(SWITCHYARD_GEMM_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_GEMM_BLOCK_INL_H_
#undef SWITCHYARD_GEMM_BLOCK_INL_H_
#else
#define SWITCHYARD_GEMM_BLOCK_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

// 256: a panel of A and one of B (16 KB each at 32 wide bf16, 24 + 32 KB at most for f32)
// stay in the first cache.
constexpr std::int64_t kDepth = 256;
constexpr std::int64_t kColumnsAtOnce = 128;  // 128 KB of B

std::int64_t round_up(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

template <typename C, typename Bias>
void store_row(const float* tile, const Bias* bias, bool accumulate, std::int64_t columns, C* c) {
  const auto count = static_cast<std::size_t>(columns);
  std::size_t j = 0;
  for (; j + lanes::kLanes <= count; j += lanes::kLanes) {
    auto sum = lanes::load(tile + j);
    if (bias != nullptr) sum = lanes::hn::Add(sum, lanes::load(bias + j));
    if (accumulate) sum = lanes::hn::Add(sum, lanes::load(c + j));
    lanes::store(sum, c + j);
  }
  if (j == count) return;
  auto sum = lanes::load(tile + j);
  if (bias != nullptr) sum = lanes::hn::Add(sum, lanes::load_some(bias + j, count - j));
  if (accumulate) sum = lanes::hn::Add(sum, lanes::load_some(c + j, count - j));
  lanes::store_some(sum, c + j, count - j);
}

template <typename C, typename Bias>
void store_tile(const GemmProblem& p, const float* tile, std::int64_t tile_columns, const GemmBlock& valid) {
  const auto* bias = p.bias == nullptr ? nullptr : static_cast<const Bias*>(p.bias) + valid.column_begin;
  for (std::int64_t i = valid.row_begin; i < valid.row_end; ++i, tile += tile_columns) {
    C* c = static_cast<C*>(p.c) + i * p.ldc + valid.column_begin;
    store_row(tile, bias, p.accumulate, valid.column_end - valid.column_begin, c);
  }
}

using StoreTile = void(const GemmProblem&, const float*, std::int64_t, const GemmBlock&);

StoreTile* store_tile_for(const GemmProblem& p) {
  if (p.dtype == DType::f32) {
    return p.c_dtype == DType::f32 ? store_tile<float, float> : store_tile<bfloat16, float>;
  }
  return p.c_dtype == DType::f32 ? store_tile<float, bfloat16> : store_tile<bfloat16, bfloat16>;
}

// Packs lines [begin, end) (rows of A or columns of B) into panels of `width` lines. Where lines are
// neighbours in memory, all panels take 32 depth elements before any takes the next 32: each stored row is
// then read in one run instead of a cache line per panel, which makes gmm_drhs a tenth faster.
template <std::int64_t width, typename Pack, typename Element>
void pack(const Pack& pack_panel, const GemmProblem& p, bool lines_contiguous, std::int64_t begin,
          std::int64_t end, std::int64_t k_begin, std::int64_t k_end, std::int64_t packed, Element* out) {
  const std::int64_t step = lines_contiguous ? 32 : kDepth;
  for (std::int64_t l = k_begin; l < k_end; l += step) {
    for (std::int64_t line = begin; line < end; line += width) {
      pack_panel(p, line, end, l, std::min(l + step, k_end),
                 out + (line - begin) * packed + (l - k_begin) * width);
    }
  }
}

template <typename Kernel>
void compute_block(const GemmProblem& p, const GemmBlock& block) {
  using Element = typename Kernel::Element;
  constexpr std::int64_t kRows = Kernel::kRows, kColumns = Kernel::kColumns, kTile = kRows * kColumns;
  const std::int64_t rows = round_up(block.row_end - block.row_begin, kRows);
  const std::int64_t columns = round_up(block.column_end - block.column_begin, kColumns);
  const std::int64_t depth = round_up(std::min(p.k, kDepth), Kernel::kDepthUnit);
  const bool one_step = p.k <= kDepth;
  auto& scratch = cpu::gemm_scratch();
  auto* a = scratch.template at_least<Element>(scratch.a, scratch.a_bytes, rows * depth);
  auto* b = scratch.template at_least<Element>(scratch.b, scratch.b_bytes, columns * depth);
  auto* tiles =
      scratch.template at_least<float>(scratch.tiles, scratch.tiles_bytes, one_step ? kTile : rows * columns);
  StoreTile* const store = store_tile_for(p);
  const typename Kernel::Session session;

  std::int64_t k_begin = 0;
  do {  // once for k = 0: the tiles become zero
    const std::int64_t k_end = std::min(k_begin + kDepth, p.k);
    const std::int64_t packed = round_up(k_end - k_begin, Kernel::kDepthUnit);
    pack<kRows>(Kernel::pack_a, p, p.transpose_a, block.row_begin, block.row_end, k_begin, k_end, packed, a);
    pack<kColumns>(Kernel::pack_b, p, !p.transpose_b, block.column_begin, block.column_end, k_begin, k_end,
                   packed, b);
    // Some panels of B stay in the second cache while those of A pass by, and C is written in long runs.
    for (std::int64_t first = 0; first < columns; first += kColumnsAtOnce) {
      for (std::int64_t i = 0; i < rows; i += kRows) {
        for (std::int64_t j = first; j < std::min(first + kColumnsAtOnce, columns); j += kColumns) {
          float* tile = one_step ? tiles : tiles + i * columns + j * kRows;
          Kernel::multiply(packed, a + i * packed, b + j * packed, k_begin > 0, tile);
          if (k_end < p.k) continue;
          const std::int64_t row = block.row_begin + i, column = block.column_begin + j;
          store(p, tile, kColumns,
                {row, std::min(row + kRows, block.row_end), column,
                 std::min(column + kColumns, block.column_end)});
        }
      }
    }
    k_begin = k_end;
  } while (k_begin < p.k);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
