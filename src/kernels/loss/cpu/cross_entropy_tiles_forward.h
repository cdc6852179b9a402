// The logits of the fused loss, and their maxima and sums (internal to the files cross_entropy_*tiles.cc).
#pragma once

#include "kernels/loss/cross_entropy_problem.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/cpu/tile_block.h"
#include "kernels/cpu/tile_exp2.h"
#include "kernels/loss/cpu/cross_entropy_tiles_pack.h"

namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles {

constexpr std::int64_t kTileFloats = 256;  // 16 x 16 fp32
constexpr std::int64_t kRowTile = 256;     // G twice in bf16: 2 x 128 KB, in L2 with the packed operands
constexpr std::int64_t kMaxEmb = 512;  // measured: equal to tiles by gemm near 800, and memory grows with it

inline Word* words(Buffer& buffer) {
  return reinterpret_cast<Word*>(buffer.data());
}
inline float* floats(Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}
inline Buffer word_buffer(std::int64_t count) {
  return Buffer(static_cast<std::size_t>(count) * sizeof(Word));
}
inline Buffer float_buffer(std::int64_t count) {
  return Buffer(static_cast<std::size_t>(count) * sizeof(float));
}

// Logits of 32 vocabulary entries (packed weight) and 32 rows, [32][32] once they are stored.
SWITCHYARD_TILED_INLINE void multiply_logits(const Fused& f, const Word* weight, std::int64_t row,
                                             HeldBlock& block) {
  const std::int64_t across = f.emb / 32 * kTileWords;
  block.multiply(f.emb / 32, {weight, kTileWords, across}, {f.hidden_by_row(row), kTileWords, across});
}
SWITCHYARD_TILED_INLINE void store_logits(HeldBlock& block, float* out) {
  block.store({out, 16 * 32, 16, 32});
}

// A strip's logits are 16 KB: they stay in L1 while the next one's are made.
constexpr std::int64_t kStripEntries = 128;

// Up to kStripEntries vocabulary entries from local one `v` of a vocabulary tile, of 32 rows.
struct LogitStrip {
  std::int64_t row, v, count;
};

// Running maximum and sum of exp(logit - maximum) of 16 rows.
struct RowLanes {
  // To the maximum that includes `count` logits at x, 32 floats apart.
  SWITCHYARD_TILED_INLINE void raise(const float* x, std::int64_t count) {
    __m512 even = _mm512_load_ps(x), odd = even;
    for (std::int64_t v = 0; v + 1 < count; v += 2) {
      even = _mm512_max_ps(even, _mm512_load_ps(x + v * 32));
      odd = _mm512_max_ps(odd, _mm512_load_ps(x + v * 32 + 32));
    }
    even = _mm512_max_ps(even, _mm512_load_ps(x + (count - 1) * 32));
    const __m512 before = _mm512_load_ps(maximum);
    now = _mm512_max_ps(before, _mm512_max_ps(even, odd));
    const __m512 factor = exp2_vector(_mm512_mul_ps(_mm512_sub_ps(before, now), _mm512_set1_ps(kLog2E)));
    total[0] = _mm512_mul_ps(_mm512_load_ps(sum), factor);
    total[1] = _mm512_setzero_ps();
  }
  SWITCHYARD_TILED_INLINE void keep() const {
    _mm512_store_ps(maximum, now);
    _mm512_store_ps(sum, _mm512_add_ps(total[0], total[1]));
  }
  float *maximum, *sum;
  __m512 now, total[2];
};

// Exponentials that are kept: those of an entry and 32 rows in 64 bytes, bf16, relative to the rows'
// maximum after their strip.
struct KeptExponentials {
  Word* words = nullptr;     // [rows / 32][entries][32]
  float* maxima = nullptr;   // [strips][rows]
  std::int64_t entries = 0;  // padded to whole tiles
  std::int64_t rows = 0;

  Word* of(std::int64_t row, std::int64_t entry) const { return words + (row / 32 * entries + entry) * 32; }
  float* maximum_of(std::int64_t row, std::int64_t entry) const {
    return maxima + entry / kStripEntries * rows + row;
  }
};

// Adds the exponentials of `count` logits of 32 rows at x; with kKeep they go to `kept` as well.
template <bool kKeep>
SWITCHYARD_TILED_INLINE void add_exponentials(RowLanes& low, RowLanes& high, const float* x,
                                              std::int64_t count, Word* kept) {
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const auto entry = [&](std::int64_t v, int sum) SWITCHYARD_TILED {
    const __m512 of_low =
        exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x + v * 32), low.now), log2e));
    const __m512 of_high =
        exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x + v * 32 + 16), high.now), log2e));
    low.total[sum] = _mm512_add_ps(low.total[sum], of_low);
    high.total[sum] = _mm512_add_ps(high.total[sum], of_high);
    if constexpr (kKeep) _mm512_store_si512(kept + v * 32, (__m512i)_mm512_cvtne2ps_pbh(of_high, of_low));
  };
  std::int64_t v = 0;
  for (; v + 1 < count; v += 2) {
    entry(v, 0);
    entry(v + 1, 1);
  }
  if (v < count) entry(v, 0);
}

// One vocabulary tile of `count` entries from local column v, of the rows [row, row_end). A strip's
// exponentials are made while the tile unit makes the next one's logits. `maximum` and `sum` are of row `row`
// on, as are the rows of `kept`, where they are kept.
template <bool kKeep>
SWITCHYARD_TILED void forward_tile(const Fused& f, const Word* weight, std::int64_t v, std::int64_t count,
                                   std::int64_t row, std::int64_t row_end, float* strips, float* maximum,
                                   float* sum, float* target_logit, const KeptExponentials& kept) {
  const std::int64_t first = f.args.vocab_begin + v;
  const auto strip_at = [&](std::int64_t at, std::int64_t begin) {
    return LogitStrip{at, begin, std::min(kStripEntries, count - begin)};
  };
  const auto after = [&](const LogitStrip& s) {
    return s.v + kStripEntries < count ? strip_at(s.row, s.v + kStripEntries) : strip_at(s.row + 32, 0);
  };
  HeldBlock held;
  LogitStrip strip = strip_at(row, 0);
  float *logits = strips, *next_logits = strips + kStripEntries * 32;
  for (std::int64_t b = 0; b < strip.count; b += 32) {
    multiply_logits(f, weight + b * f.emb, row, held);
    store_logits(held, logits + b * 32);
  }
  while (strip.row < row_end) {
    const LogitStrip next = after(strip);
    const std::int64_t next_count = next.row < row_end ? next.count : 0, at = strip.row - row;
    RowLanes low{maximum + at, sum + at, {}, {}}, high{maximum + at + 16, sum + at + 16, {}, {}};
    low.raise(logits, strip.count);
    high.raise(logits + 16, strip.count);
    for (std::int64_t b = 0; b < std::max(strip.count, next_count); b += 32) {
      const std::int64_t entries = std::clamp<std::int64_t>(strip.count - b, 0, 32);
      if (b < next_count) multiply_logits(f, weight + (next.v + b) * f.emb, next.row, held);
      add_exponentials<kKeep>(low, high, logits + b * 32, entries,
                              kKeep ? kept.of(at, v + strip.v + b) : nullptr);
      if (b < next_count) store_logits(held, next_logits + b * 32);
    }
    low.keep();
    high.keep();
    if constexpr (kKeep) {
      _mm512_store_ps(kept.maximum_of(at, v + strip.v), low.now);
      _mm512_store_ps(kept.maximum_of(at + 16, v + strip.v), high.now);
    }
    for (std::int64_t i = strip.row; i < std::min(strip.row + 32, f.args.rows); ++i) {
      const std::int64_t target = f.args.targets[i] - first - strip.v;
      if (target >= 0 && target < strip.count) target_logit[i] = logits[target * 32 + i - strip.row];
    }
    strip = next;
    std::swap(logits, next_logits);
  }
}

// lse of `rows` rows from the maxima and sums of all chunks, which are `stride` rows apart.
inline void merge_chunks(ThreadPool& pool, std::int64_t chunks, std::int64_t stride, const float* maxima,
                         const float* sums, std::int64_t rows, float* lse) {
  pool.for_range(rows, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float maximum = -std::numeric_limits<float>::infinity();
      for (std::int64_t c = 0; c < chunks; ++c) maximum = std::max(maximum, maxima[c * stride + r]);
      float sum = 0;
      for (std::int64_t c = 0; c < chunks; ++c)
        sum += sums[c * stride + r] * std::exp(maxima[c * stride + r] - maximum);
      lse[r] = maximum + std::log(sum);
    }
  });
}

// Sets maxima and sums to their start: finite, so that the first correction
// is 2^(very negative) = 0 and not a NaN.
inline void reset_sums(std::int64_t count, float* maxima, float* sums) {
  std::fill_n(maxima, count, -1e30f);
  std::fill_n(sums, count, 0.0f);
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles
#endif  // x86-64
