// Products of few rows in fp32 for AVX2 and AVX-512, of f32 or bf16 operands: every element of B is read from
// memory once and widened in a register, so B's memory bounds them.
//
// 1. Sums of all columns of a block wait in the caches, while B's stored rows pass by in
// long runs, a group of
//    them at a time. The next group is fetched meanwhile (row_fetcher.h).
// 2. B stored [k][n]: a group is some rows of depth. B stored [n][k]: a group is a panel of columns, which is
//    transposed in registers into a buffer in L1.
// 3. An element's sum is made along the depth in its order, one fused product after the
// other, as the kernel for
//    many rows makes it (gemm_vectors.cc). So a row's result does not depend on how many rows there are.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/product/cpu/few_rows_columns.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/cpu/row_fetcher.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/product/cpu/gemm_block-inl.h"
#include "kernels/product/few_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::Split;
using lanes::V;

constexpr auto kStep = static_cast<std::int64_t>(lanes::kLanes);
constexpr std::int64_t kPair = 2 * kStep;  // columns of two vectors
constexpr bool kManyRegisters = HWY_MAX_BYTES == 64;
constexpr std::int64_t kRowsAtOnce = kManyRegisters ? 8 : 4;  // of A: two sums each stay in registers
constexpr std::int64_t kDepthAtOnce = 4;         // rows of B between loading a sum and storing it
constexpr std::int64_t kAheadBytes = 16 * 1024;  // fetched before they are used, at least a group

// A [m] rows of `lda` floats; sums [m] rows of `sums_row` floats.
struct Rows {
  const float* a;
  std::int64_t lda, m;
  float* sums;
  std::int64_t sums_row;

  Rows from(std::int64_t row) const { return {a + row * lda, lda, m - row, sums + row * sums_row, sums_row}; }
};

// Two vectors of B. Those of bf16 are the even and the odd ones of kPair, of f32 the two halves.
template <typename T>
HWY_INLINE Split load_pair(const T* b, std::int64_t left) {
  constexpr bool kEvenOdd = !std::is_same_v<T, float>;
  if (HWY_LIKELY(left >= kPair)) return lanes::load_block<kEvenOdd>(b);
  T some[kPair] = {};
  for (std::int64_t i = 0; i < left; ++i) some[i] = b[i];
  return lanes::load_block<kEvenOdd>(some);
}

// sums += `depth` rows of B times m of A, for kPair columns, of which B has `left`.
template <int m, int depth, typename T>
HWY_INLINE void add_pair(const Rows& rows, const T* b, std::int64_t ldb, std::int64_t left, float* sums) {
  const D d;
  V low[m], high[m];
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
    low[i] = hn::LoadU(d, sums + i * rows.sums_row);
    high[i] = hn::LoadU(d, sums + i * rows.sums_row + kStep);
  }
#pragma GCC unroll 4
  for (int l = 0; l < depth; ++l) {
    const Split x = load_pair(b + l * ldb, left);
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) {
      const V a = hn::Set(d, rows.a[i * rows.lda + l]);
      low[i] = hn::MulAdd(a, x.even, low[i]);
      high[i] = hn::MulAdd(a, x.odd, high[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
    hn::StoreU(low[i], d, sums + i * rows.sums_row);
    hn::StoreU(high[i], d, sums + i * rows.sums_row + kStep);
  }
}

template <int m, int depth, typename T, typename Fetch>
void add_group(const Rows& rows, const T* b, std::int64_t ldb, std::int64_t columns, const Fetch& fetch) {
  std::int64_t j = 0;
  for (; j + kPair <= columns; j += kPair) {
    fetch();
    add_pair<m, depth>(rows, b + j, ldb, kPair, rows.sums + j);
  }
  if (j < columns) add_pair<m, depth>(rows, b + j, ldb, columns - j, rows.sums + j);
}

// body of the number m as a constant, 1 <= m <= kRowsAtOnce.
template <typename Body>
HWY_INLINE void with_rows(std::int64_t m, const Body& body) {
  switch (m) {
    case 1:
      return body(std::integral_constant<int, 1>());
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    default:
      break;
  }
  if constexpr (kRowsAtOnce == 8) {
    switch (m) {
      case 5:
        return body(std::integral_constant<int, 5>());
      case 6:
        return body(std::integral_constant<int, 6>());
      case 7:
        return body(std::integral_constant<int, 7>());
      default:
        return body(std::integral_constant<int, 8>());
    }
  }
}

// B stored [k][n], from the first column of `columns`.
template <typename T>
void multiply_plain(const Rows& all, std::int64_t k, const T* b, std::int64_t ldb, std::int64_t columns) {
  constexpr std::int64_t kAhead = kAheadBytes / static_cast<std::int64_t>(sizeof(T));
  constexpr std::int64_t kLines = kDepthAtOnce * kPair * static_cast<std::int64_t>(sizeof(T)) / 64;
  const std::int64_t ahead = std::max<std::int64_t>(1, kAhead / columns / kDepthAtOnce) * kDepthAtOnce;
  cpu::RowFetcher<T>(b, ldb, std::min(ahead, k), columns).fetch(std::numeric_limits<std::int64_t>::max());
  for (std::int64_t l = 0; l < k; l += kDepthAtOnce) {
    cpu::RowFetcher<T> next(b + (l + ahead) * ldb, ldb, std::min(kDepthAtOnce, k - l - ahead), columns);
    const auto fetch = [&] { next.fetch(kLines); };
    for (std::int64_t i = 0; i < all.m; i += kRowsAtOnce) {
      Rows rows = all.from(i);
      rows.a += l;
      with_rows(std::min(kRowsAtOnce, rows.m), [&](auto m) {
        if (l + kDepthAtOnce <= k)
          return add_group<m.value, kDepthAtOnce>(rows, b + l * ldb, ldb, columns, fetch);
        for (std::int64_t r = l; r < k; ++r, ++rows.a)
          add_group<m.value, 1>(rows, b + r * ldb, ldb, columns, [] {});
      });
    }
    fetch();  // the lines of the last columns
  }
}

// Transposes eight stored rows at a time: rows that are a multiple of 4 KB apart have eight places in L1.
using Word8 = hn::FixedTag<std::uint32_t, 8>;
constexpr std::int64_t kTransposed = 8;

// Four words from each of eight rows: of[i] is word i of every row.
struct Words {
  hn::Vec<Word8> of[4];
};
HWY_INLINE Words transpose_words(const void* x, std::int64_t row_bytes) {
  const Word8 d;
  const hn::Repartition<std::uint64_t, Word8> wide;
  const auto words = [&](int i) {  // of rows i and i + 4
    const auto of = [&](int at) {
      const auto* words_of_row = static_cast<const std::byte*>(x) + at * row_bytes;
      return hn::LoadU(hn::Half<Word8>(), reinterpret_cast<const std::uint32_t*>(words_of_row));
    };
    return hn::Combine(d, of(i + 4), of(i));
  };
  const auto r0 = words(0), r1 = words(1), r2 = words(2), r3 = words(3);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  return {{hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)),
           hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23))}};
}

// Elements of depth in four words, and in a line of L1.
template <typename T>
constexpr std::int64_t kQuad = 16 / static_cast<std::int64_t>(sizeof(T));
template <typename T>
constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));

// out[l * width + column] = row `column` of x at depth l, of kTransposed rows and kQuad elements.
template <typename T>
HWY_INLINE void transpose_quad(const T* x, std::int64_t row, std::int64_t width, float* out) {
  const hn::Rebind<float, Word8> d;
  const Words words = transpose_words(x, row * static_cast<std::int64_t>(sizeof(T)));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      hn::Store(hn::BitCast(d, words.of[i]), d, out + i * width);
    } else {
      const auto odd = hn::And(words.of[i], hn::Set(Word8(), 0xffff0000u));
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(words.of[i])), d, out + 2 * i * width);
      hn::Store(hn::BitCast(d, odd), d, out + (2 * i + 1) * width);
    }
  }
}

// Transposes only `rows` rows and `depth` elements, which may be fewer; the missing ones count as zeros.
template <typename T>
void transpose_some(const T* x, std::int64_t row, std::int64_t rows, std::int64_t depth, std::int64_t width,
                    float* out) {
  T some[kTransposed * kQuad<T>] = {};
  for (std::int64_t j = 0; j < rows; ++j) {
    for (std::int64_t l = 0; l < depth; ++l) some[j * kQuad<T> + l] = x[j * row + l];
  }
  transpose_quad(some, kQuad<T>, width, out);
}

// A panel of B stored [n][k]: `columns` stored rows, the first 1 .. width of them, `depth` elements each from
// x on. The other columns are zero. Lines of rows are used up one after the other.
template <typename T, typename Fetch>
void transpose_panel(const T* x, std::int64_t row, std::int64_t columns, std::int64_t depth,
                     std::int64_t width, float* out, const Fetch& fetch) {
  for (std::int64_t line = 0; line < depth; line += kLine<T>) {
    for (std::int64_t j = 0; j < width; j += kTransposed) {
      const std::int64_t rows = std::clamp<std::int64_t>(columns - j, 0, kTransposed);
      for (std::int64_t l = line; l < std::min(line + kLine<T>, depth); l += kQuad<T>) {
        fetch();
        float* const to = out + l * width + j;
        if (rows == kTransposed && l + kQuad<T> <= depth)
          transpose_quad(x + j * row + l, row, width, to);
        else
          transpose_some(x + j * row + l, row, rows, std::min(kQuad<T>, depth - l), width, to);
      }
    }
  }
}

// sums += a panel [depth][vectors * kStep] times m rows of A.
template <int m, int vectors>
void add_panel(const Rows& rows, std::int64_t depth, const float* HWY_RESTRICT panel) {
  const D d;
  V sum[m][vectors];
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) sum[i][n] = hn::LoadU(d, rows.sums + i * rows.sums_row + n * kStep);
  }
  for (std::int64_t l = 0; l < depth; ++l, panel += vectors * kStep) {
#pragma GCC unroll 8
    for (int i = 0; i < m; ++i) {
      const V a = hn::Set(d, rows.a[i * rows.lda + l]);
#pragma GCC unroll 4
      for (int n = 0; n < vectors; ++n) sum[i][n] = hn::MulAdd(a, hn::Load(d, panel + n * kStep), sum[i][n]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < m; ++i) {
#pragma GCC unroll 4
    for (int n = 0; n < vectors; ++n) hn::StoreU(sum[i][n], d, rows.sums + i * rows.sums_row + n * kStep);
  }
}

// B stored [n][k], from the first stored row of `columns`. `panel` has room for panel_floats().
constexpr std::int64_t kPanelDepth = 64;
constexpr std::int64_t kMostVectors = 4;
constexpr std::int64_t panel_floats() {
  return (kPanelDepth + 8) * kMostVectors * kStep;
}

template <int vectors, typename T>
void multiply_transposed_panels(const Rows& all, std::int64_t k, const T* b, std::int64_t ldb,
                                std::int64_t columns, float* panel) {
  constexpr std::int64_t kWidth = vectors * kStep;
  constexpr std::int64_t kLines = kTransposed * kQuad<T> / kLine<T>;  // that a quad uses
  for (std::int64_t j = 0; j < columns; j += kWidth) {
    const std::int64_t valid = std::min(kWidth, columns - j), after = columns - j - kWidth;
    cpu::RowFetcher<T> next(b + (j + kWidth) * ldb, ldb, std::min(kWidth, after), k);
    for (std::int64_t l = 0; l < k; l += kPanelDepth) {
      const std::int64_t depth = std::min(kPanelDepth, k - l);
      transpose_panel(b + j * ldb + l, ldb, valid, depth, kWidth, panel, [&] { next.fetch(kLines); });
      for (std::int64_t i = 0; i < all.m; i += kRowsAtOnce) {
        Rows rows = all.from(i);
        rows.a += l;
        rows.sums += j;
        with_rows(std::min(kRowsAtOnce, rows.m), [&](auto m) {
          if constexpr (m.value * vectors <= 2 * kRowsAtOnce) add_panel<m.value, vectors>(rows, depth, panel);
        });
      }
    }
  }
}

template <typename T>
void multiply_transposed(const Rows& rows, std::int64_t k, const T* b, std::int64_t ldb, std::int64_t columns,
                         float* panel) {
  // One row's sums would wait for each other.
  if (rows.m <= kRowsAtOnce / 2) return multiply_transposed_panels<4>(rows, k, b, ldb, columns, panel);
  multiply_transposed_panels<2>(rows, k, b, ldb, columns, panel);
}

// The rows of A in fp32, where they are not.
void widen_rows(const GemmProblem& p, std::int64_t row_stride, float* out) {
  for (std::int64_t i = 0; i < p.m; ++i, out += row_stride) {
    const auto* x = static_cast<const bfloat16*>(p.a) + i * p.lda;
    std::int64_t l = 0;
    for (; l + kStep <= p.k; l += kStep) lanes::store(lanes::load(x + l), out + l);
    for (; l < p.k; ++l) out[l] = static_cast<float>(x[l]);
  }
}

// Even and odd columns into their order.
void interleave(std::int64_t columns, float* sums) {
  const D d;
  for (std::int64_t j = 0; j < columns; j += kPair)
    lanes::store_pairs({hn::LoadU(d, sums + j), hn::LoadU(d, sums + j + kStep)}, sums + j);
}

template <typename T>
void multiply(const GemmProblem& p, const GemmBlock& block, const Rows& rows, float* panel) {
  const std::int64_t begin = block.column_begin, columns = block.column_end - begin;
  const auto* b = static_cast<const T*>(p.b);
  if (p.transpose_b) return multiply_transposed(rows, p.k, b + begin * p.ldb, p.ldb, columns, panel);
  multiply_plain(rows, p.k, b + begin, p.ldb, columns);
  if constexpr (std::is_same_v<T, float>) return;
  for (std::int64_t i = 0; i < p.m; ++i) interleave(columns, rows.sums + i * rows.sums_row);
}

// Columns whose sums stay in the caches.
std::int64_t columns_at_once(std::int64_t m) {
  constexpr std::int64_t kFloats = 16 * 1024, kLeast = 512;
  return std::max(kLeast, kFloats / m / kPair * kPair);
}

}  // namespace

void gemm_few_rows(const GemmProblem& p, const GemmBlock& block) {
  static thread_local cpu::ThreadScratch memory;
  // 16 floats apart from a power of two: rows would share few lines of L1.
  constexpr std::int64_t kApart = 16;
  const bool widened = p.dtype != DType::f32;
  const std::int64_t at_once = std::min(columns_at_once(p.m), block.column_end - block.column_begin);
  const std::int64_t sums_row = round_up(at_once, kMostVectors * kStep) + kApart;
  const std::int64_t a_row = widened ? round_up(p.k, kApart) + kApart : p.lda;
  float* const panel = memory.at_least<float>(panel_floats() + p.m * (sums_row + (widened ? a_row : 0)));
  float* const sums = panel + panel_floats();
  float* const widened_a = sums + p.m * sums_row;
  if (widened) widen_rows(p, a_row, widened_a);
  const Rows rows{widened ? widened_a : static_cast<const float*>(p.a), a_row, p.m, sums, sums_row};
  for (std::int64_t j = block.column_begin; j < block.column_end; j += at_once) {
    const GemmBlock some{0, p.m, j, std::min(j + at_once, block.column_end)};
    std::fill(sums, sums + p.m * sums_row, 0.0f);
    if (p.dtype == DType::f32)
      multiply<float>(p, some, rows, panel);
    else
      multiply<bfloat16>(p, some, rows, panel);
    store_tile_for(p)(p, sums, sums_row, some);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void gemm_few_rows_avx2(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX2::gemm_few_rows(problem, block);
}
void gemm_few_rows_avx512(const GemmProblem& problem, const GemmBlock& block) {
  N_AVX3::gemm_few_rows(problem, block);
}

}  // namespace switchyard::cpu
#endif
