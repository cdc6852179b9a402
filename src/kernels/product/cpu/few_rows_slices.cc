// bf16 products of few rows, as in decoding: every element of B is read once and used for few rows,
// so B's memory bounds them. B is never packed; A is small and widened to fp32 once.
//
// A row of B at a time would be read at full speed, but loads and stores a sum for each element. So four are
// worked on, and the next four fetched meanwhile in the order of their addresses: fetching them as they are
// used, a line of each in turn, or half of every row, has the memory work at half its speed.
#include <algorithm>
#include <iterator>

#include "kernels/cpu/thread_scratch.h"
#include "kernels/cpu/tile_rows.h"
#include "kernels/element/kernels.h"
#include "kernels/product/few_rows.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu {
namespace {

using Word = bfloat16;
using SWITCHYARD_TILES::first;
using SWITCHYARD_TILES::load_some;
using SWITCHYARD_TILES::store_some;

constexpr std::int64_t kDepthAtOnce = 4;  // rows of B between loading a sum and storing it
constexpr std::int64_t kPair = 32;        // columns whose even and odd ones are a vector each
constexpr std::int64_t kLineWords = 32;
constexpr std::int64_t kAheadWords =
    8 * 1024;  // rows that are fetched before they are used, at least a group

// Columns whose sums stay in the caches.
std::int64_t columns_at_once(std::int64_t m) {
  constexpr std::int64_t kFloats = 16 * 1024;
  return kFloats / m / kPair * kPair;
}

// One operand pair of the depth, and where its sums go.
struct Product {
  const float* a;  // [m] rows of k
  std::int64_t lda;
  std::int64_t m, k;
  const Word* b;  // from the first column (stored row, when transposed)
  std::int64_t ldb;
};

// Returns the index of the sum of row i and column j: [column / 32][row][odd column][column / 2 % 16].
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

  // kNear: into L1, which rows that are long would sweep.
  template <bool kNear>
  void fetch_some() {
    for (std::int64_t n = 0; n < kDepthAtOnce && rows_ > 0; ++n) {
      _mm_prefetch(reinterpret_cast<const char*>(line_), kNear ? _MM_HINT_T0 : _MM_HINT_T1);
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
  const std::int64_t ahead = std::max<std::int64_t>(1, kAheadWords / p.ldb / kDepthAtOnce) * kDepthAtOnce;
  const bool near = kDepthAtOnce * p.ldb <= kAheadWords;
  for (std::int64_t l = 0; l < p.k; l += kDepthAtOnce) {
    const std::int64_t rows = std::min(kDepthAtOnce, p.k - l);
    Fetcher next(p, l + ahead, columns);
    for (std::int64_t j = 0; j < columns; j += kPair) {
      const std::int64_t left = columns - j;
      near ? next.fetch_some<true>() : next.fetch_some<false>();
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
      const __m512 x = load_some(b + l, mask);
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
constexpr Multiply* kTransposed[] = {nullptr, multiply_transposed<1>, multiply_transposed<2>};
static_assert(std::size(kPlain) == kFewRows + 1 && std::size(kTransposed) == kFewRowsTransposed + 1);

// Apart by more than the depth: rows that are a power of two apart would share few lines of L1.
std::int64_t widened_row(std::int64_t depth) {
  return depth + 16;
}

void widen_rows(const GemmProblem& p, const GemmTerm& term, std::int64_t from, std::int64_t depth,
                float* out) {
  for (std::int64_t i = 0; i < p.m; ++i, out += widened_row(depth)) {
    const Word* row =
        static_cast<const Word*>(term.a) + (term.a_rows == nullptr ? i : term.a_rows[i]) * term.lda + from;
    for (std::int64_t l = 0; l < depth; l += 16) {
      _mm512_mask_storeu_ps(out + l, first(depth - l), load_some(row + l, first(depth - l)));
    }
  }
}

// 32 sums of row i from column j on, of all slices in turn.
struct Sums {
  __m512 low, high;
};
Sums sum_slices(const GemmProblem& p, std::int64_t i, std::int64_t j, const float* sums, std::int64_t slices,
                std::int64_t slice_floats) {
  const float* at = sums + place_of(p.m, i, j);
  __m512 even = _mm512_loadu_ps(at), odd = _mm512_loadu_ps(at + 16);
  for (std::int64_t s = 1; s < slices; ++s) {
    at += slice_floats;
    even = _mm512_add_ps(even, _mm512_loadu_ps(at));
    odd = _mm512_add_ps(odd, _mm512_loadu_ps(at + 16));
  }
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  return {_mm512_permutex2var_ps(even, low, odd), _mm512_permutex2var_ps(even, high, odd)};
}

template <typename C>
void store(const GemmProblem& p, bool next, const float* sums, std::int64_t slices,
           std::int64_t slice_floats) {
  const auto* bias = static_cast<const bfloat16*>(p.bias);
  for (std::int64_t i = 0; i < p.m; ++i) {
    C* const row = static_cast<C*>(next ? p.c_next : p.c) + i * p.ldc;
    for (std::int64_t j = 0; j < p.n; j += kPair) {
      const Sums x = sum_slices(p, i, j, sums, slices, slice_floats);
      const auto store_half = [&](__m512 half, std::int64_t from) {
        const __mmask16 mask = first(p.n - from);
        if (bias != nullptr) half = _mm512_add_ps(half, load_some(bias + from, mask));
        if (p.accumulate) half = _mm512_add_ps(half, load_some(row + from, mask));
        store_some(row + from, mask, half);
      };
      store_half(x.low, j);
      store_half(x.high, j + 16);
    }
  }
}

void make_hidden(const GemmProblem& p) {
  const std::int64_t gap = p.ldc - p.n;
  swiglu_avx512({.dtype = DType::bf16,
                 .out_dtype = DType::bf16,
                 .by_rows = true,
                 .rows = p.m,
                 .columns = p.n,
                 .in = {{p.c, gap}, {p.c_next, gap}},
                 .out = {{p.hidden, gap}},
                 .row_number = p.row_weights},
                0, p.m);
}

}  // namespace

void few_rows_sums(const FewRowsSlice& slice, float* all_sums) {
  static thread_local ThreadScratch memory;
  const GemmProblem& p = *slice.problem;
  // The last slice has what further terms have beyond the first one's depth.
  const auto end_in = [&](const GemmTerm& term) {
    return slice.depth_end == p.k ? term.k : std::min(slice.depth_end, term.k);
  };
  std::int64_t deepest = 0;
  for (std::int64_t t = 0; t < p.terms(); ++t) deepest = std::max(deepest, end_in(p.term(t)));
  float* const a = memory.at_least<float>(2 * p.m * widened_row(deepest - slice.depth_begin));
  const auto add = [&](const GemmTerm& term, std::int64_t begin, std::int64_t columns) {
    const std::int64_t depth = end_in(term) - slice.depth_begin;
    if (depth <= 0) return;
    widen_rows(p, term, slice.depth_begin, depth, a);
    const std::int64_t at =
        p.transpose_b ? begin * term.ldb + slice.depth_begin : slice.depth_begin * term.ldb + begin;
    const auto* const b = static_cast<const Word*>(slice.next ? term.b_next : term.b) + at;
    const Product product{a, widened_row(depth), p.m, depth, b, term.ldb};
    (p.transpose_b ? kTransposed : kPlain)[p.m](product, columns, all_sums + slice.sums + begin * p.m);
  };
  const std::int64_t at_once = columns_at_once(p.m);
  for (std::int64_t j = slice.columns.begin; j < slice.columns.end; j += at_once) {
    const std::int64_t columns = std::min(at_once, slice.columns.end - j);
    float* const sums = all_sums + slice.sums + j * p.m;
    std::fill(sums, sums + (columns + kPair - 1) / kPair * kPair * p.m, 0.0f);
    for (std::int64_t t = 0; t < p.terms(); ++t) add(p.term(t), j, columns);
  }
}

void few_rows_store(const GemmProblem& p, const float* sums, std::int64_t slices) {
  const std::int64_t matrix = few_rows_floats(p), matrices = p.c_next == nullptr ? 1 : 2;
  for (std::int64_t next = 0; next < matrices; ++next) {
    const auto run = p.c_dtype == DType::f32 ? store<float> : store<bfloat16>;
    run(p, next == 1, sums + next * matrix, slices, matrices * matrix);
  }
  if (p.hidden != nullptr) make_hidden(p);
}

}  // namespace switchyard::cpu
SWITCHYARD_TILES_END
#endif  // x86-64
