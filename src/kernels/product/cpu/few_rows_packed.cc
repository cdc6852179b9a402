// Products of few rows and packed weights (kernels/packed/packed_block.h) for AVX2 and AVX-512: every block
// is read from memory once, its numbers become floats in registers,
// and each row of A is multiplied by them there.
//
// A group's products are summed before its scale is applied: sums of even and of odd numbers of words, each
// in the order of the inputs, whatever the number of rows. So a row's result does not depend
// on how many there are.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product/cpu/few_rows_packed.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/packed/cpu/packed_lanes-inl.h"
#include "kernels/product/cpu/gemm_block-inl.h"
#include "kernels/product/few_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;
using packed_lanes::Format;
using packed_lanes::kStep;

constexpr std::int64_t kRowsAtOnce = HWY_MAX_BYTES == 64 ? 8 : 4;  // two sums each stay in registers

// Rows of A in float32 and where their sums are.
struct Rows {
  const float* a;  // from the input of a block on
  std::int64_t lda;
  const float* group_sums;  // of each row's inputs of the block, `group_sums_row` apart
  std::int64_t group_sums_row;
  float* sums;  // from the output of a block on
  std::int64_t sums_row;
};

// sums of m rows += A · block.
template <DType packed, int m>
HWY_INLINE void add_block(const typename Format<packed>::Table& table, const Rows& rows,
                          const std::byte* block) {
  using F = Format<packed>;
  const D d;
  constexpr std::int64_t kScales = scales_of(packed);
  const std::byte* group = block + header_bytes(packed);
  for (std::int64_t g = 0; g < groups_of(packed); ++g, group += group_bytes(packed)) {
    for (std::int64_t output = 0; output < kBlockOutputs; output += kStep) {
      for (std::int64_t part = 0; part < kScales; ++part) {
        V sum[2][m];
#pragma GCC unroll 8
        for (int r = 0; r < m; ++r) sum[0][r] = sum[1][r] = hn::Zero(d);
        packed_lanes::for_numbers<packed>(
            table, group, part, output, [&](std::int64_t input, auto i, V number) HWY_ATTR {
#pragma GCC unroll 8
              for (int r = 0; r < m; ++r) {
                V& to = sum[i.value % 2][r];
                to = hn::MulAdd(hn::Set(d, rows.a[r * rows.lda + g * kGroupInputs + input]), number, to);
              }
            });
        const V scale = F::scale(block, g * kScales + part, output);
#pragma GCC unroll 8
        for (int r = 0; r < m; ++r) {
          float* const at = rows.sums + r * rows.sums_row + output;
          V all = hn::MulAdd(hn::Add(sum[0][r], sum[1][r]), scale, hn::LoadU(d, at));
          if constexpr (has_offset(packed)) {
            const V inputs = hn::Set(d, rows.group_sums[r * rows.group_sums_row + g]);
            all = hn::MulAdd(F::offset(block, g, output), inputs, all);
          }
          hn::StoreU(all, d, at);
        }
      }
    }
  }
}

// sums += all rows of A times the blocks of some columns.
template <DType packed>
void multiply_blocks(const GemmProblem& p, const GemmBlock& block, const Rows& all) {
  const typename Format<packed>::Table table = Format<packed>::table();
  for (std::int64_t i = 0; i < p.m; i += kRowsAtOnce) {
    packed_lanes::with_row_count<kRowsAtOnce>(std::min(kRowsAtOnce, p.m - i), [&](auto m) HWY_ATTR {
      packed_lanes::walk_blocks(p, block,
                                [&](std::int64_t row, std::int64_t column, const std::byte* at) HWY_ATTR {
                                  Rows rows = all;
                                  rows.a += i * rows.lda + row * block_inputs(packed);
                                  rows.group_sums += i * rows.group_sums_row + row * groups_of(packed);
                                  rows.sums += i * rows.sums_row + column * kBlockOutputs;
                                  add_block<packed, m.value>(table, rows, at);
                                });
    });
  }
}

// A in float32, and the sums of each row's groups.
void widen(const GemmProblem& p, std::int64_t row, float* out, std::int64_t sums_row, float* sums) {
  for (std::int64_t i = 0; i < p.m; ++i, out += row, sums += sums_row) {
    const auto each = [&](const auto* x) {
      for (std::int64_t l = 0; l < p.k; l += kStep) lanes::store(lanes::load(x + l), out + l);
    };
    if (p.dtype == DType::f32)
      each(static_cast<const float*>(p.a) + i * p.lda);
    else
      each(static_cast<const bfloat16*>(p.a) + i * p.lda);
    for (std::int64_t g = 0; g < p.k / kGroupInputs; ++g) {
      V sum = hn::Zero(D());
      for (std::int64_t l = 0; l < kGroupInputs; l += kStep)
        sum = hn::Add(sum, hn::LoadU(D(), out + g * kGroupInputs + l));
      sums[g] = hn::GetLane(hn::SumOfLanes(D(), sum));
    }
  }
}

}  // namespace

void gemm_few_rows_packed(const GemmProblem& p, const GemmBlock& block) {
  static thread_local cpu::ThreadScratch memory;
  constexpr std::int64_t kApart = 16;  // rows a power of two apart would share few lines of L1
  constexpr std::int64_t kFloats = 16 * 1024;
  const std::int64_t columns = block.column_end - block.column_begin;
  const std::int64_t at_once =
      std::min(columns, std::max<std::int64_t>(512, kFloats / p.m / kBlockOutputs * kBlockOutputs));
  const std::int64_t sums_row = at_once + kApart, a_row = p.k + kApart, groups = p.k / kGroupInputs;
  float* const a = memory.at_least<float>(p.m * (a_row + groups + sums_row));
  float* const group_sums = a + p.m * a_row;
  float* const sums = group_sums + p.m * groups;
  widen(p, a_row, a, groups, group_sums);
  for (std::int64_t j = block.column_begin; j < block.column_end; j += at_once) {
    const GemmBlock some{0, p.m, j, std::min(j + at_once, block.column_end)};
    std::fill(sums, sums + p.m * sums_row, 0.0f);
    packed_lanes::with_packed(p.weight_dtype, [&](auto packed) {
      multiply_blocks<packed.value>(p, some, {a, a_row, group_sums, groups, sums, sums_row});
    });
    store_tile_for(p)(p, sums, sums_row, some);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void gemm_few_rows_packed_avx2(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX2::gemm_few_rows_packed(problem, block);
}
void gemm_few_rows_packed_avx512(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX3::gemm_few_rows_packed(problem, block);
}

}  // namespace switchyard::cpu
#endif
