// The epilogue of a product whose sums are logits (internal to gemm_tiles.cc).
#pragma once

#include <cmath>

#include "kernels/cpu/tile_exp2.h"
#include "kernels/product/cpu/gemm_tiles_store.h"
#include "kernels/product/logit_epilogue.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

// A row's sums of exponentials over a group's columns so far: lane i sums every 16th column from i on.
struct alignas(64) LogitLanes {
  float maximum[16];
  float sum[16];
};

inline RowSum sum_of(__m512 maximum, __m512 sum) {
  const float top = _mm512_reduce_max_ps(maximum);
  const __m512 below = _mm512_mul_ps(_mm512_sub_ps(maximum, _mm512_set1_ps(top)), _mm512_set1_ps(kLog2E));
  return {top, _mm512_reduce_add_ps(_mm512_mul_ps(sum, exp2_vector(below)))};
}

// Returns the column of a row's target, counted from column `begin`; -1 if the strips do not hold it.
inline std::int64_t target_among(const LogitEpilogue& logits, std::int64_t row, std::int64_t begin,
                                 std::int64_t columns) {
  const std::int64_t column = logits.targets[row] - logits.first_id - begin;
  return column >= 0 && column < columns ? column : -1;
}

// Returns the index of a column of some strips in a line's sums.
inline std::int64_t sum_at(std::int64_t column) {
  return column / kLines * kSums + column % kLines / 16 * 256 + column % 16;
}

// Adds some strips of a panel's rows to the rows' sums of exponentials. The maximum is updated strip by
// strip, so that the bits do not depend on the number of strips per call. `lanes`: one per row of the panel.
inline void add_logits(const GemmProblem& p, const PanelRows& rows, std::int64_t strip_begin,
                       std::int64_t strips, const float* sums, LogitLanes* lanes) {
  constexpr std::int64_t kGroupStrips = kLogitGroup / kLines;
  // Finite, so that the first differences are no NaN.
  const __m512 lowest = _mm512_set1_ps(-1e30f), log2e = _mm512_set1_ps(kLog2E);
  const std::int64_t groups = ceil_div(p.n, kLogitGroup), last = ceil_div(p.n, kLines) - 1;
  const std::int64_t begin = strip_begin * kLines, columns = std::min(strips * kLines, p.n - begin);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.first + r;
    const float* from = rows.in(sums, r);
    LogitLanes& kept = lanes[r];
    __m512 maximum = _mm512_load_ps(kept.maximum), sum = _mm512_load_ps(kept.sum);
    const std::int64_t target = target_among(*p.logits, row, begin, columns);
    if (target >= 0) p.logits->target_logit[row] = from[sum_at(target)];
    for (std::int64_t s = strip_begin; s < strip_begin + strips; ++s, from += kSums) {
      if (s % kGroupStrips == 0) {
        maximum = lowest;
        sum = _mm512_setzero_ps();
      }
      __m512 low = _mm512_load_ps(from), high = _mm512_load_ps(from + 256);
      if (s == last) {
        const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        low = _mm512_mask_mov_ps(none, first(p.n - s * kLines), low);
        high = _mm512_mask_mov_ps(none, first(p.n - s * kLines - 16), high);
      }
      const __m512 now = _mm512_max_ps(maximum, _mm512_max_ps(low, high));
      if (_mm512_cmp_ps_mask(now, maximum, _CMP_NEQ_UQ) != 0) {
        sum = _mm512_mul_ps(sum, exp2_vector(_mm512_mul_ps(_mm512_sub_ps(maximum, now), log2e)));
        maximum = now;
      }
      sum = _mm512_add_ps(sum, exp2_vector(_mm512_mul_ps(_mm512_sub_ps(low, maximum), log2e)));
      sum = _mm512_add_ps(sum, exp2_vector(_mm512_mul_ps(_mm512_sub_ps(high, maximum), log2e)));
      if (s == last || s % kGroupStrips == kGroupStrips - 1)
        p.logits->sums[row * groups + s / kGroupStrips] = sum_of(maximum, sum);
    }
    _mm512_store_ps(kept.maximum, maximum);
    _mm512_store_ps(kept.sum, sum);
  }
}

// Stores the logits' gradients in C.
inline void store_logit_gradients(const GemmProblem& p, const PanelRows& rows, std::int64_t strip_begin,
                                  std::int64_t strips, const float* sums) {
  const LogitEpilogue& logits = *p.logits;
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const std::int64_t begin = strip_begin * kLines, columns = std::min(strips * kLines, p.n - begin);
  for (std::int64_t r = 0; r < rows.count; ++r) {
    const std::int64_t row = rows.first + r;
    const float* const from = rows.in(sums, r);
    Word* const c = static_cast<Word*>(p.c) + row * p.ldc + begin;
    const __m512 lse = _mm512_set1_ps(logits.lse[row]);
    const __m512 scale = _mm512_set1_ps(logits.softmax_coefficient[row]);
    const auto gradient = [&](const float* x) {
      // Subtracted before the product: an fma would save an operation and lose digits when lse is large.
      const __m512 below = _mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x), lse), log2e);
      return _mm512_mul_ps(exp2_vector(below), scale);
    };
    for (std::int64_t s = 0; s < strips; ++s) {
      const auto words = reinterpret_cast<__m512i>(
          _mm512_cvtne2ps_pbh(gradient(from + s * kSums + 256), gradient(from + s * kSums)));
      const std::int64_t left = columns - s * kLines;
      if (left >= kLines)
        _mm512_storeu_si512(c + s * kLines, words);
      else
        _mm512_mask_storeu_epi16(c + s * kLines, (1u << left) - 1u, words);
    }
    const std::int64_t target = target_among(logits, row, begin, columns);
    if (target < 0) continue;
    const float softmax = std::exp(from[sum_at(target)] - logits.lse[row]);
    c[target] = bfloat16::round(logits.softmax_coefficient[row] * softmax - logits.target_coefficient[row]);
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
