// bf16 products of few rows, as in decoding: every element of B is read once and used at most kFewRows times,
// so B's memory bounds them. B is never packed; A is small and widened to fp32 once.
//
// A row of B at a time would be read at full speed, but loads and stores a sum for each element. So four are
// worked on, and the next four fetched meanwhile in the order of their addresses: fetching them as they are
// used, a line of each in turn, or half of every row, has the memory work at half its speed.
#include <algorithm>

#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/tile_target.h"
#include "kernels/elementwise_problem.h"
#include "kernels/gemm_problem.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu {
namespace {

using Word = std::uint16_t;  // the bits of a bfloat16

constexpr std::int64_t kDepthAtOnce = 4;  // rows of B between loading a sum and storing it
constexpr std::int64_t kPair = 32;        // columns whose even and odd ones are a vector each
constexpr std::int64_t kLineWords = 32;

// Columns whose sums stay in L1, or nearly.
std::int64_t columns_at_once(std::int64_t m) {
  return m <= 2 ? 4096 : 2048;
}

__mmask16 first(std::int64_t count) {
  return static_cast<__mmask16>((1u << std::clamp<std::int64_t>(count, 0, 16)) - 1u);
}

__m512 widen(__m256i words) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}

__m512 load(const Word* x, __mmask16 mask) {
  return widen(_mm256_maskz_loadu_epi16(mask, x));
}

// One operand pair of the depth, and where its sums go.
struct Product {
  const float* a;  // [m] rows of k
  std::int64_t lda;
  std::int64_t m, k;
  const Word* b;  // from the first column (stored row, when transposed)
  std::int64_t ldb;
};

// Where the sum of row i and column j is: [column / 32][row][odd column][column / 2 % 16].
std::int64_t place_of(std::int64_t m, std::int64_t i, std::int64_t j) {
  return (j / kPair * m + i) * kPair + j % 2 * 16 + j % kPair / 2;
}

// Fetches the lines of some rows of B in the order of their addresses.
class Fetcher {
 public:
  Fetcher(const Product& p, std::int64_t row, std::int64_t columns)
      : line_(p.b + row * p.ldb),
        skip_(p.ldb - columns),
        lines_((columns + kLineWords - 1) / kLineWords),
        rows_(std::clamp(p.k - row, std::int64_t{0}, kDepthAtOnce)),
        last_(columns - (lines_ - 1) * kLineWords) {}

  void fetch_some() {
    for (std::int64_t n = 0; n < kDepthAtOnce && rows_ > 0; ++n) {
      _mm_prefetch(reinterpret_cast<const char*>(line_), _MM_HINT_T0);
      line_ += kLineWords;
      if (++at_ < lines_) continue;
      line_ += last_ - kLineWords + skip_;
      at_ = 0;
      --rows_;
    }
  }

 private:
  const Word* line_;
  std::int64_t skip_, lines_, rows_, last_, at_ = 0;
};

// sums of all rows += the products of `rows` rows of B from l on, for 32 columns.
template <int m>
void add_rows(const Product& p, std::int64_t l, std::int64_t rows, std::int64_t j, __mmask32 mask,
              float* sums) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  __m512 even[m], odd[m];
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
    even[i] = _mm512_loadu_ps(sums + i * kPair);
    odd[i] = _mm512_loadu_ps(sums + i * kPair + 16);
  }
  const Word* b = p.b + l * p.ldb + j;
  for (std::int64_t r = 0; r < rows; ++r, b += p.ldb) {
    const __m512i words = _mm512_maskz_loadu_epi16(mask, b);
    const __m512 x = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                 y = _mm512_castsi512_ps(_mm512_and_si512(words, upper));
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) {
      const __m512 a = _mm512_set1_ps(p.a[i * p.lda + l + r]);
      even[i] = _mm512_fmadd_ps(a, x, even[i]);
      odd[i] = _mm512_fmadd_ps(a, y, odd[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
    _mm512_storeu_ps(sums + i * kPair, even[i]);
    _mm512_storeu_ps(sums + i * kPair + 16, odd[i]);
  }
}

// B stored [k][n].
template <int m>
void multiply_plain(const Product& p, std::int64_t columns, float* sums) {
  for (std::int64_t l = 0; l < p.k; l += kDepthAtOnce) {
    const std::int64_t rows = std::min(kDepthAtOnce, p.k - l);
    Fetcher next(p, l + kDepthAtOnce, columns);
    for (std::int64_t j = 0; j < columns; j += kPair) {
      const std::int64_t left = columns - j;
      next.fetch_some();
      add_rows<m>(p, l, rows, j, left >= kPair ? 0xffffffffu : (1u << left) - 1u, sums + j * m);
    }
  }
}

// B stored [n][k]: a dot product an element, kept as 16 partial sums.
template <int m>
void multiply_transposed(const Product& p, std::int64_t columns, float* sums) {
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
        sum[i] = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, p.a + i * p.lda + l), x, sum[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) sums[place_of(m, i, j)] += _mm512_reduce_add_ps(sum[i]);
  }
}

using Multiply = void(const Product&, std::int64_t, float*);
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

// Apart by more than k: rows that are a power of two apart would share few lines of L1.
std::int64_t widened_row(const GemmProblem& p) {
  return p.k + 16;
}

void widen_rows(const GemmProblem& p, const void* a, float* out) {
  for (std::int64_t i = 0; i < p.m; ++i, out += widened_row(p)) {
    const Word* row = static_cast<const Word*>(a) + (p.a_rows == nullptr ? i : p.a_rows[i]) * p.lda;
    for (std::int64_t l = 0; l < p.k; l += 16) {
      _mm512_mask_storeu_ps(out + l, first(p.k - l), load(row + l, first(p.k - l)));
    }
  }
}

template <typename C>
void store(const GemmProblem& p, bool next, std::int64_t column, std::int64_t columns, const float* sums) {
  for (std::int64_t i = 0; i < p.m; ++i) {
    C* c = static_cast<C*>(next ? p.c_next : p.c) + i * p.ldc + column;
    const auto* bias = p.bias == nullptr ? nullptr : static_cast<const bfloat16*>(p.bias) + column;
    for (std::int64_t j = 0; j < columns; ++j) {
      float sum = sums[place_of(p.m, i, j)];
      if (bias != nullptr) sum += static_cast<float>(bias[j]);
      if (p.accumulate) sum += static_cast<float>(c[j]);
      c[j] = static_cast<C>(sum);
    }
  }
}

// Columns [column, column + columns) of C, or of C_next.
void compute(const GemmProblem& p, bool next, std::int64_t column, std::int64_t columns, const float* a,
             float* sums) {
  std::fill(sums, sums + (columns + kPair - 1) / kPair * kPair * p.m, 0.0f);
  const std::int64_t at = p.transpose_b ? column * p.ldb : column, lda = widened_row(p);
  const auto add = [&](const float* rows, const void* b) {
    const Product product{rows, lda, p.m, p.k, static_cast<const Word*>(b) + at, p.ldb};
    (p.transpose_b ? kTransposed : kPlain)[p.m](product, columns, sums);
  };
  add(a, next ? p.b_next : p.b);
  if (p.a_next != nullptr) add(a + p.m * lda, p.b_next);
  p.c_dtype == DType::f32 ? store<float>(p, next, column, columns, sums)
                          : store<bfloat16>(p, next, column, columns, sums);
}

void make_hidden(const GemmProblem& p, std::int64_t column, std::int64_t columns) {
  for (std::int64_t i = 0; i < p.m; ++i) {
    const std::int64_t at = i * p.ldc + column;
    swiglu_avx512({.dtype = DType::bf16,
                   .gate = static_cast<const Word*>(p.c) + at,
                   .up = static_cast<const Word*>(p.c_next) + at,
                   .w = p.row_weights == nullptr ? nullptr : p.row_weights + i,
                   .cols = columns,
                   .h = static_cast<Word*>(p.hidden) + at},
                  0, 1);
  }
}

}  // namespace

void gemm_few_rows(const GemmProblem& p, const GemmBlock& block) {
  static thread_local ThreadScratch a_memory, sums_memory;
  float* const a = a_memory.at_least<float>(2 * p.m * widened_row(p));
  const std::int64_t at_once = columns_at_once(p.m);
  float* const sums = sums_memory.at_least<float>(p.m * at_once);
  widen_rows(p, p.a, a);
  if (p.a_next != nullptr) widen_rows(p, p.a_next, a + p.m * widened_row(p));
  const int matrices = p.c_next == nullptr ? 1 : 2;
  const std::int64_t begin = block.column_begin / matrices;
  const std::int64_t end = std::min(block.column_end / matrices, p.n);
  for (int matrix = 0; matrix < matrices; ++matrix) {
    for (std::int64_t j = begin; j < end; j += at_once) {
      compute(p, matrix == 1, j, std::min(at_once, end - j), a, sums);
    }
  }
  if (p.hidden != nullptr) make_hidden(p, begin, end - begin);
}

}  // namespace switchyard::cpu
SWITCHYARD_TILES_END
#endif  // x86-64
