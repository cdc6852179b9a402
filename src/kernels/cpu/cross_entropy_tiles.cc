// Fused output projection and cross-entropy for bf16 and a narrow model, in tiles.
//
// 1. Logits are made transposed, [vocab][row]: a vector holds one vocabulary entry of 16 rows, so maxima and
// sums over
//    the vocabulary need no shuffles and the per-row constants sit in registers.
// 2. A strip of logits stays in L1 between the product and the exponentials, which are made while the tile
//    unit makes the next strip.
// 3. The gradient of a logit is rounded to bf16 once and stored twice: as it is ([vocab][row], left operand
// of
//    dweight = G . hidden) and in pairs of vocabulary entries (right operand of dhidden^T = weight^T . G).
//    Pairs are interleaved within 128-bit lanes only, which permutes the rows; row_of_lane undoes it when
//    dhidden is written.
// 4. The vocabulary is split into chunks that follow from the shape alone. A chunk is one unit of parallel
// work with its
//    own sums, added in chunk order: the result does not depend on the threads.
//
// Every packed operand is made of 1 KB tiles, 16 rows of 64 bytes, as AMX loads them. "Units" are 32-bit: a
// bf16 pair or a float.
#include "kernels/cross_entropy_problem.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cross_entropy_tiles_pack.h"
#include "kernels/cpu/tile_block.h"
#include "kernels/cpu/tile_exp2.h"

namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

using namespace cross_entropy_tiles;

constexpr std::int64_t kTileFloats = 256;  // 16 x 16 fp32
constexpr std::int64_t kRowTile = 256;     // G twice in bf16: 2 x 128 KB, in L2 with the packed operands
constexpr std::int64_t kMaxEmb = 512;  // measured: equal to tiles by gemm near 800, and memory grows with it

Word* words(Buffer& buffer) {
  return reinterpret_cast<Word*>(buffer.data());
}
float* floats(Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}
Buffer word_buffer(std::int64_t count) {
  return Buffer(static_cast<std::size_t>(count) * sizeof(Word));
}
Buffer float_buffer(std::int64_t count) {
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

// ---- Forward
// -------------------------------------------------------------------------------------------------------

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
  SWITCHYARD_TILED_INLINE void add(const float* x, std::int64_t count) {
    const __m512 log2e = _mm512_set1_ps(kLog2E);
    std::int64_t v = 0;
    for (; v + 1 < count; v += 2) {
      const __m512 first = _mm512_sub_ps(_mm512_load_ps(x + v * 32), now);
      const __m512 second = _mm512_sub_ps(_mm512_load_ps(x + v * 32 + 32), now);
      total[0] = _mm512_add_ps(total[0], exp2_vector(_mm512_mul_ps(first, log2e)));
      total[1] = _mm512_add_ps(total[1], exp2_vector(_mm512_mul_ps(second, log2e)));
    }
    if (v < count) {
      const __m512 last = _mm512_sub_ps(_mm512_load_ps(x + v * 32), now);
      total[0] = _mm512_add_ps(total[0], exp2_vector(_mm512_mul_ps(last, log2e)));
    }
  }
  SWITCHYARD_TILED_INLINE void keep() const {
    _mm512_store_ps(maximum, now);
    _mm512_store_ps(sum, _mm512_add_ps(total[0], total[1]));
  }
  float *maximum, *sum;
  __m512 now, total[2];
};

// One vocabulary tile of `count` entries from local column v, all rows. A strip's exponentials are made while
// the tile unit makes the next one's logits.
SWITCHYARD_TILED void forward_tile(const Fused& f, const Word* weight, std::int64_t v, std::int64_t count,
                                   float* strips, float* maximum, float* sum, float* target_logit) {
  const std::int64_t first = f.args.vocab_begin + v;
  const auto strip_at = [&](std::int64_t row, std::int64_t begin) {
    return LogitStrip{row, begin, std::min(kStripEntries, count - begin)};
  };
  const auto after = [&](const LogitStrip& s) {
    return s.v + kStripEntries < count ? strip_at(s.row, s.v + kStripEntries) : strip_at(s.row + 32, 0);
  };
  HeldBlock held;
  LogitStrip strip = strip_at(0, 0);
  float *logits = strips, *next_logits = strips + kStripEntries * 32;
  for (std::int64_t b = 0; b < strip.count; b += 32) {
    multiply_logits(f, weight + b * f.emb, 0, held);
    store_logits(held, logits + b * 32);
  }
  while (strip.row < f.rows) {
    const LogitStrip next = after(strip);
    const std::int64_t next_count = next.row < f.rows ? next.count : 0;
    RowLanes low{maximum + strip.row, sum + strip.row, {}, {}};
    RowLanes high{maximum + strip.row + 16, sum + strip.row + 16, {}, {}};
    low.raise(logits, strip.count);
    high.raise(logits + 16, strip.count);
    for (std::int64_t b = 0; b < std::max(strip.count, next_count); b += 32) {
      const std::int64_t entries = std::clamp<std::int64_t>(strip.count - b, 0, 32);
      if (b < next_count) multiply_logits(f, weight + (next.v + b) * f.emb, next.row, held);
      low.add(logits + b * 32, entries);
      high.add(logits + b * 32 + 16, entries);
      if (b < next_count) store_logits(held, next_logits + b * 32);
    }
    low.keep();
    high.keep();
    for (std::int64_t i = strip.row; i < std::min(strip.row + 32, f.args.rows); ++i) {
      const std::int64_t target = f.args.targets[i] - first - strip.v;
      if (target >= 0 && target < strip.count) target_logit[i] = logits[target * 32 + i - strip.row];
    }
    strip = next;
    std::swap(logits, next_logits);
  }
}

// ---- Backward
// ------------------------------------------------------------------------------------------------------

// Per row, padded with zeros: log-sum-exp and the two coefficients.
struct RowConstants {
  const float* lse;
  const float* softmax;
  const float* target;
};

// Where G of one (vocabulary tile, row tile) goes: tiles [vocab/16][kRowTile/32] and
// [vocab/32][kRowTile/32][2].
struct GradientTiles {
  Word* plain;
  Word* paired;
};

// Gradients of one vocabulary entry's 32 rows as bf16.
SWITCHYARD_TILED_INLINE __m512i gradient_words(const float* x, const __m512 (&lse)[2],
                                               const __m512 (&scale)[2]) {
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  // Subtracted before the product: an fma would save an operation and lose digits when lse is large.
  const __m512 low = exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x), lse[0]), log2e));
  const __m512 high = exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x + 16), lse[1]), log2e));
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale[1]), _mm512_mul_ps(low, scale[0]));
}

// Logits [32][32] of rows r.. -> their gradients in both layouts. Entries from `count` on are padding and
// become 0.
SWITCHYARD_TILED_INLINE void gradient_block(const float* logits, std::int64_t count, const RowConstants& rows,
                                            std::int64_t r, GradientTiles g) {
  const __m512 lse[2] = {_mm512_load_ps(rows.lse + r), _mm512_load_ps(rows.lse + r + 16)};
  const __m512 scale[2] = {_mm512_load_ps(rows.softmax + r), _mm512_load_ps(rows.softmax + r + 16)};
  Word* plain = g.plain;
  for (std::int64_t v = 0; v < 32; v += 2, logits += 64, g.paired += 32) {
    const __m512i even = v < count ? gradient_words(logits, lse, scale) : _mm512_setzero_si512();
    const __m512i odd = v + 1 < count ? gradient_words(logits + 32, lse, scale) : _mm512_setzero_si512();
    if (v == 16) plain = g.plain + kRowTile / 32 * kTileWords;
    _mm512_store_si512(plain + v % 16 * 32, even);
    _mm512_store_si512(plain + v % 16 * 32 + 32, odd);
    _mm512_store_si512(g.paired, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(g.paired + kTileWords, _mm512_unpackhi_epi16(even, odd));
  }
}

// The row (of 32) that a lane of the first or second paired tile holds, see invariant 3.
constexpr std::int64_t row_of_lane(std::int64_t half, std::int64_t lane) {
  return lane / 4 * 8 + half * 4 + lane % 4;
}

// Subtracts the target's coefficient for the rows whose target is among the `count` entries from global id
// `first`.
void subtract_targets(const LinearCrossEntropyArgs& args, const float* logits, std::int64_t first,
                      std::int64_t count, const RowConstants& rows, std::int64_t r, GradientTiles g) {
  for (std::int64_t i = 0; i < 32 && r + i < args.rows; ++i) {
    const std::int64_t v = args.targets[r + i] - first;
    if (v < 0 || v >= count) continue;
    const float p = std::exp(logits[v * 32 + i] - rows.lse[r + i]);
    const Word word = bfloat16::round(rows.softmax[r + i] * p - rows.target[r + i]);
    g.plain[v / 16 * (kRowTile / 32 * kTileWords) + v % 16 * 32 + i] = word;
    const std::int64_t lane = i / 8 * 4 + i % 4;
    g.paired[i % 8 / 4 * kTileWords + v / 2 * 32 + lane * 2 + v % 2] = word;
  }
}

// A block's gradients are made while the tile unit makes the next one's logits.
SWITCHYARD_TILED void gradient_tile(const Fused& f, const Word* weight, std::int64_t v, std::int64_t count,
                                    const RowConstants& constants, std::int64_t r, std::int64_t row_end,
                                    GradientTiles g) {
  alignas(64) float buffers[2][32 * 32];
  const std::int64_t across = ceil_div(count, 32), blocks = (row_end - r) / 32 * across;
  HeldBlock held;
  const auto multiply = [&](std::int64_t block) SWITCHYARD_TILED {
    multiply_logits(f, weight + block % across * 32 * f.emb, r + block / across * 32, held);
  };
  multiply(0);
  store_logits(held, buffers[0]);
  for (std::int64_t block = 0; block < blocks; ++block) {
    if (block + 1 < blocks) multiply(block + 1);
    const float* const logits = buffers[block % 2];
    const std::int64_t i = block / across, b = block % across * 32;
    const GradientTiles at{g.plain + (b / 16 * (kRowTile / 32) + i) * kTileWords,
                           g.paired + (b / 32 * (kRowTile / 32) + i) * 2 * kTileWords};
    gradient_block(logits, count - b, constants, r + 32 * i, at);
    subtract_targets(f.args, logits, f.args.vocab_begin + v + b, std::min<std::int64_t>(32, count - b),
                     constants, r + 32 * i, at);
    if (block + 1 < blocks) store_logits(held, buffers[(block + 1) % 2]);
  }
}

// dweight tile [kVocabTile][emb] (+)= G . hidden over the rows [r, row_end).
SWITCHYARD_TILED void add_dweight(const Fused& f, const Word* plain, std::int64_t count, std::int64_t r,
                                  std::int64_t row_end, float* dweight) {
  const std::int64_t across = kRowTile / 32 * kTileWords;
  for (std::int64_t v = 0; v < count; v += 32) {
    for (std::int64_t e = 0; e < f.emb; e += 32) {
      multiply_block<false>((row_end - r) / 32, {plain + v / 16 * across, kTileWords, across},
                            {f.hidden_by_emb(r) + e / 16 * kTileWords, f.emb / 16 * kTileWords, kTileWords},
                            {dweight + v * f.emb + e, 16 * f.emb, 16, f.emb}, r > 0);
    }
  }
}

// dhidden^T, tiles [rows/32][2][emb/16], (+)= weight^T . G over `count` vocabulary entries.
SWITCHYARD_TILED void add_dhidden(const Fused& f, const Word* weight_transposed, const Word* paired,
                                  std::int64_t count, std::int64_t r, std::int64_t row_end, bool add,
                                  float* dhidden) {
  const std::int64_t across = f.emb / 16 * kTileFloats;
  for (std::int64_t i = 0; r + 32 * i < row_end; ++i) {
    for (std::int64_t e = 0; e < f.emb; e += 32) {
      multiply_block<false>(
          ceil_div(count, 32),
          {weight_transposed + e / 16 * (kVocabTile / 32) * kTileWords, kTileWords,
           kVocabTile / 32 * kTileWords},
          {paired + i * 2 * kTileWords, kRowTile / 32 * 2 * kTileWords, kTileWords},
          {dhidden + (r / 32 + i) * 2 * across + e / 16 * kTileFloats, kTileFloats, across, 16}, add);
    }
  }
}

// 32 floats, rounded; the first `count` of them are stored.
SWITCHYARD_TILED_INLINE void store_rounded(const float* low, const float* high, std::int64_t count,
                                           Word* out) {
  const __mmask32 keep = count >= 32 ? ~0u : (1u << count) - 1u;
  _mm512_mask_storeu_epi16(out, keep,
                           (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(high), _mm512_load_ps(low)));
}

SWITCHYARD_TILED void store_dweight(const Fused& f, const float* tile, std::int64_t v, std::int64_t count,
                                    Word* dweight) {
  if (f.args.weight_vocab_major) {
    for (std::int64_t i = 0; i < count; ++i, tile += f.emb) {
      for (std::int64_t e = 0; e < f.args.emb; e += 32)
        store_rounded(tile + e, tile + e + 16, f.args.emb - e, dweight + (v + i) * f.args.emb + e);
    }
    return;
  }
  alignas(64) float turned[2][kTileFloats];
  for (std::int64_t e = 0; e < f.args.emb; e += 16) {
    for (std::int64_t i = 0; i < count; i += 32) {
      for (std::int64_t half = 0; half < 2; ++half)
        transpose_units(tile + (i + 16 * half) * f.emb + e, f.emb, turned[half], 16, 16, 16);
      for (std::int64_t d = 0; d < std::min<std::int64_t>(16, f.args.emb - e); ++d)
        store_rounded(turned[0] + 16 * d, turned[1] + 16 * d, count - i,
                      dweight + (e + d) * f.args.vocab + v + i);
    }
  }
}

void backward_chunk(const Fused& f, std::int64_t chunk, const RowConstants& constants, float* dhidden,
                    Word* dweight) {
  Buffer weight = word_buffer(kVocabTile * f.emb), weight_transposed = word_buffer(kVocabTile * f.emb);
  Buffer plain = word_buffer(kVocabTile * kRowTile), paired = word_buffer(kVocabTile * kRowTile);
  Buffer dweight_tile = float_buffer(kVocabTile * f.emb);
  const TileSession session;
  const std::int64_t begin = chunk * f.chunk, end = std::min(f.args.vocab, begin + f.chunk);
  for (std::int64_t v = begin; v < end; v += kVocabTile) {
    const std::int64_t count = std::min(kVocabTile, end - v);
    f.pack_weight(v, words(weight));
    f.pack_weight_transposed(v, words(weight_transposed));
    for (std::int64_t r = 0; r < f.rows; r += kRowTile) {
      const std::int64_t row_end = std::min(f.rows, r + kRowTile);
      gradient_tile(f, words(weight), v, count, constants, r, row_end, {words(plain), words(paired)});
      add_dweight(f, words(plain), count, r, row_end, floats(dweight_tile));
      add_dhidden(f, words(weight_transposed), words(paired), count, r, row_end, v > begin, dhidden);
    }
    store_dweight(f, floats(dweight_tile), v, count, dweight);
  }
}

// Sums the chunks' dhidden^T tiles of 32 rows in chunk order and writes dhidden.
SWITCHYARD_TILED void store_dhidden(const Fused& f, const float* tiles, std::int64_t r, float* dhidden) {
  alignas(64) float sums[kMaxEmb * 16], turned[kTileFloats];
  const std::int64_t size = f.emb * 16;
  for (std::int64_t half = 0; half < 2; ++half) {
    std::fill(sums, sums + size, 0.0f);
    for (std::int64_t c = 0; c < f.chunks; ++c) {
      const float* const x = tiles + (c * f.rows + r) * f.emb + half * size;
      for (std::int64_t i = 0; i < size; i += 16)
        _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_load_ps(x + i)));
    }
    for (std::int64_t e = 0; e < f.args.emb; e += 16) {
      transpose_units(sums + e * 16, 16, turned, 16, 16, 16);
      const auto keep = static_cast<__mmask16>((1u << std::min<std::int64_t>(16, f.args.emb - e)) - 1u);
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        const std::int64_t row = r + row_of_lane(half, lane);
        if (row < f.args.rows)
          _mm512_mask_storeu_ps(dhidden + row * f.args.emb + e, keep, _mm512_load_ps(turned + 16 * lane));
      }
    }
  }
}

}  // namespace

const char* cross_entropy_refuses(const LinearCrossEntropyArgs& args) {
  if (args.dtype != DType::bf16) return "takes bfloat16 only";
  if (args.emb > kMaxEmb) return "takes at most 512 model dims: above, tiled products are faster";
  if (args.emb < 1 || args.rows < 1 || args.vocab < 1) return "needs at least one row, model dim and column";
  if (args.logit_soft_cap > 0) return "has no soft cap";
  return nullptr;
}

std::size_t cross_entropy_workspace(const LinearCrossEntropyArgs& args, bool backward) {
  const Fused f(args, false);
  const std::int64_t words = 2 * f.rows * f.emb;
  const std::int64_t floats = backward ? (3 + f.chunks * f.emb) * f.rows : 2 * f.chunks * f.rows;
  return static_cast<std::size_t>(words) * sizeof(Word) + static_cast<std::size_t>(floats) * sizeof(float);
}

void cross_entropy(ThreadPool& pool, const LinearCrossEntropyArgs& args, float* lse, float* target_logit) {
  Fused f(args);
  f.pack_hidden(pool, false);
  std::fill(target_logit, target_logit + args.rows, 0.0f);
  Buffer maxima = float_buffer(f.chunks * f.rows), sums = float_buffer(f.chunks * f.rows);
  // Finite, so that the first correction is 2^(very negative) = 0 and not a NaN.
  std::fill(floats(maxima), floats(maxima) + f.chunks * f.rows, -1e30f);
  std::fill(floats(sums), floats(sums) + f.chunks * f.rows, 0.0f);
  pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
    Buffer weight = word_buffer(kVocabTile * f.emb), strips = float_buffer(2 * kStripEntries * 32);
    const TileSession session;
    const std::int64_t end = std::min(args.vocab, (chunk + 1) * f.chunk);
    for (std::int64_t v = chunk * f.chunk; v < end; v += kVocabTile) {
      f.pack_weight(v, words(weight));
      forward_tile(f, words(weight), v, std::min(kVocabTile, end - v), floats(strips),
                   floats(maxima) + chunk * f.rows, floats(sums) + chunk * f.rows, target_logit);
    }
  });
  pool.for_range(args.rows, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float maximum = -std::numeric_limits<float>::infinity();
      for (std::int64_t c = 0; c < f.chunks; ++c) maximum = std::max(maximum, floats(maxima)[c * f.rows + r]);
      float sum = 0;
      for (std::int64_t c = 0; c < f.chunks; ++c) {
        sum += floats(sums)[c * f.rows + r] * std::exp(floats(maxima)[c * f.rows + r] - maximum);
      }
      lse[r] = maximum + std::log(sum);
    }
  });
}

void cross_entropy_backward(ThreadPool& pool, const LinearCrossEntropyArgs& args, const float* lse,
                            const float* softmax_coefficient, const float* target_coefficient, float* dhidden,
                            void* dweight) {
  Fused f(args);
  f.pack_hidden(pool, true);
  Buffer padded = float_buffer(3 * f.rows);
  std::fill(floats(padded), floats(padded) + 3 * f.rows, 0.0f);
  const RowConstants constants{floats(padded), floats(padded) + f.rows, floats(padded) + 2 * f.rows};
  std::copy(lse, lse + args.rows, floats(padded));
  std::copy(softmax_coefficient, softmax_coefficient + args.rows, floats(padded) + f.rows);
  std::copy(target_coefficient, target_coefficient + args.rows, floats(padded) + 2 * f.rows);
  Buffer dhidden_tiles = float_buffer(f.chunks * f.rows * f.emb);
  pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
    backward_chunk(f, chunk, constants, floats(dhidden_tiles) + chunk * f.rows * f.emb,
                   static_cast<Word*>(dweight));
  });
  pool.for_range(f.rows / 32, 1, [&](std::int64_t block, std::int64_t) {
    store_dhidden(f, floats(dhidden_tiles), block * 32, dhidden);
  });
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif  // x86-64
