// bf16 products of few rows, as in decoding: every element of B is read once and used at most kFewRows times,
// so B's memory bounds them. B is read in long runs and never packed; A is small and widened to fp32 once.
#include <algorithm>

#include "kernels/cpu/tile_target.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/gemm_problem.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu {
namespace {

using Word = std::uint16_t;  // the bits of a bfloat16

constexpr std::int64_t kDepthAtOnce = 8;       // rows of B between loading a sum and storing it
constexpr std::int64_t kRowsAhead = 32;        // rows of B that are fetched before they are used
constexpr std::int64_t kColumnsAtOnce = 2048;  // sums of so many columns stay in L1 and L2

__mmask16 first(std::int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1u);
}

__m512 widen(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

__m512 load(const Word* x, __mmask16 mask) {
  return widen(_mm256_maskz_loadu_epi16(mask, x));
}

// One operand pair of the depth, and where its sums go.
struct Product {
  const float* a;  // [m][k]
  std::int64_t m, k;
  const Word* b;  // from the first column (stored row, when transposed)
  std::int64_t ldb;
};

// sums[i][j] += the products of `rows` rows of B from l on, for 16 columns.
template <int m>
void add_rows(const Product& p, std::int64_t l, std::int64_t rows, std::int64_t j, __mmask16 mask,
              float* sums, std::int64_t stride) {
  __m512 sum[m];
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) sum[i] = _mm512_loadu_ps(sums + i * stride + j);
  const Word* b = p.b + l * p.ldb + j;
  for (std::int64_t r = 0; r < rows; ++r, b += p.ldb) {
    const __m512 x = load(b, mask);
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) sum[i] = _mm512_fmadd_ps(_mm512_set1_ps(p.a[i * p.k + l + r]), x, sum[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) _mm512_storeu_ps(sums + i * stride + j, sum[i]);
}

// B stored [k][n].
template <int m>
void multiply_plain(const Product& p, std::int64_t columns, float* sums, std::int64_t stride) {
  for (std::int64_t l = 0; l < p.k; l += kDepthAtOnce) {
    const std::int64_t rows = std::min(kDepthAtOnce, p.k - l), ahead = l + kRowsAhead;
    for (std::int64_t j = 0; j < columns; j += 16) {
      if (j % 32 == 0) {
        for (std::int64_t r = ahead; r < std::min(ahead + kDepthAtOnce, p.k); ++r)
          _mm_prefetch(reinterpret_cast<const char*>(p.b + r * p.ldb + j), _MM_HINT_T0);
      }
      add_rows<m>(p, l, rows, j, first(columns - j), sums, stride);
    }
  }
}

// B stored [n][k]: a dot product an element, kept as 16 partial sums.
template <int m>
void multiply_transposed(const Product& p, std::int64_t columns, float* sums, std::int64_t stride) {
  for (std::int64_t j = 0; j < columns; ++j) {
    const Word* b = p.b + j * p.ldb;
    __m512 sum[m];
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) sum[i] = _mm512_setzero_ps();
    for (std::int64_t l = 0; l < p.k; l += 16) {
      const __mmask16 mask = first(p.k - l);
      const __m512 x = load(b + l, mask);
#pragma GCC unroll 8
      for (int i = 0; i < m; ++i)
        sum[i] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, p.a + i * p.k + l), x, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) sums[i * stride + j] += _mm512_reduce_add_ps(sum[i]);
  }
}

using Multiply = void(const Product&, std::int64_t, float*, std::int64_t);
constexpr Multiply* kPlain[] = {nullptr,           multiply_plain<1>, multiply_plain<2>,
                                multiply_plain<3>, multiply_plain<4>, multiply_plain<5>,
                                multiply_plain<6>, multiply_plain<7>, multiply_plain<8>};
constexpr Multiply* kTransposed[] = {nullptr,
                                     multiply_transposed<1>,
                                     multiply_transposed<2>,
                                     multiply_transposed<3>,
                                     multiply_transposed<4>,
                                     multiply_transposed<5>,
                                     multiply_transposed<6>,
                                     multiply_transposed<7>,
                                     multiply_transposed<8>};

void widen_rows(const GemmProblem& p, const void* a, float* out) {
  for (std::int64_t i = 0; i < p.m; ++i, out += p.k) {
    const Word* row = static_cast<const Word*>(a) + (p.a_rows == nullptr ? i : p.a_rows[i]) * p.lda;
    for (std::int64_t l = 0; l < p.k; l += 16) {
      _mm512_mask_storeu_ps(out + l, first(p.k - l), load(row + l, first(p.k - l)));
    }
  }
}

template <typename C>
void store(const GemmProblem& p, bool next, std::int64_t column, std::int64_t columns, const float* sums,
           std::int64_t stride) {
  for (std::int64_t i = 0; i < p.m; ++i, sums += stride) {
    C* c = static_cast<C*>(next ? p.c_next : p.c) + i * p.ldc + column;
    const auto* bias = p.bias == nullptr ? nullptr : static_cast<const bfloat16*>(p.bias) + column;
    for (std::int64_t j = 0; j < columns; ++j) {
      float sum = sums[j];
      if (bias != nullptr) sum += static_cast<float>(bias[j]);
      if (p.accumulate) sum += static_cast<float>(c[j]);
      c[j] = static_cast<C>(sum);
    }
  }
}

// Columns [column, column + columns) of C, or of C_next.
void compute(const GemmProblem& p, bool next, std::int64_t column, std::int64_t columns, float* a,
             float* sums) {
  const std::int64_t stride = (columns + 15) / 16 * 16;
  std::fill(sums, sums + p.m * stride, 0.0f);
  const std::int64_t at = p.transpose_b ? column * p.ldb : column;
  const auto add = [&](const float* rows, const void* b) {
    const Product product{rows, p.m, p.k, static_cast<const Word*>(b) + at, p.ldb};
    (p.transpose_b ? kTransposed : kPlain)[p.m](product, columns, sums, stride);
  };
  add(a, next ? p.b_next : p.b);
  if (p.a_next != nullptr) add(a + p.m * p.k, p.b_next);
  p.c_dtype == DType::f32 ? store<float>(p, next, column, columns, sums, stride)
                          : store<bfloat16>(p, next, column, columns, sums, stride);
}

}  // namespace

void gemm_few_rows(const GemmProblem& p, const GemmBlock& block) {
  static thread_local ThreadScratch a_memory, sums_memory;
  float* const a = a_memory.at_least<float>(2 * p.m * p.k + 16);
  float* const sums = sums_memory.at_least<float>(p.m * (kColumnsAtOnce + 16));
  widen_rows(p, p.a, a);
  if (p.a_next != nullptr) widen_rows(p, p.a_next, a + p.m * p.k);
  const std::int64_t boundary = p.c_next == nullptr ? p.n : p.columns() - p.n;  // where C_next begins
  for (const bool next : {false, true}) {
    if (next && p.c_next == nullptr) break;
    const std::int64_t origin = next ? boundary : 0;
    const std::int64_t begin = std::max(block.column_begin - origin, std::int64_t{0});
    const std::int64_t end = std::min(block.column_end - origin, p.n);
    for (std::int64_t j = begin; j < end; j += kColumnsAtOnce) {
      compute(p, next, j, std::min(kColumnsAtOnce, end - j), a, sums);
    }
  }
}

}  // namespace switchyard::cpu
SWITCHYARD_TILES_END
#endif  // x86-64
