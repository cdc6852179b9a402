// The gradients of the fused loss: how they lie in tiles, and the two products of them
// (internal to the files cross_entropy_*tiles.cc).
#pragma once

#include "kernels/loss/cpu/cross_entropy_tiles_forward.h"

#if defined(__x86_64__)
namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles {

// Per row, padded with zeros: log-sum-exp and the two coefficients.
struct RowConstants {
  const float* lse;
  const float* softmax;
  const float* target;
};

// Their memory.
class PaddedRows {
 public:
  explicit PaddedRows(std::int64_t rows) : rows_(rows), memory_(float_buffer(3 * rows)) {
    std::fill_n(floats(memory_), 3 * rows, 0.0f);
  }
  void set(std::int64_t begin, std::int64_t end, const float* lse, const float* softmax,
           const float* target) {
    float* out = floats(memory_);
    for (const float* const from : {lse, softmax, target}) {
      std::copy(from + begin, from + end, out + begin);
      out += rows_;
    }
  }
  RowConstants constants() {
    float* const x = floats(memory_);
    return {x, x + rows_, x + 2 * rows_};
  }

 private:
  std::int64_t rows_;
  Buffer memory_;
};

// The place of G of one (vocabulary tile, row
// tile): tiles [vocab/16][kRowTile/32] and [vocab/32][kRowTile/32][2].
struct GradientTiles {
  Word* plain;
  Word* paired;
};

// The gradients of two vocabulary entries of 32 rows, in both layouts. `plain` is the first entry's line.
SWITCHYARD_TILED_INLINE void store_gradients(__m512i even, __m512i odd, Word* plain, Word* paired) {
  _mm512_store_si512(plain, even);
  _mm512_store_si512(plain + 32, odd);
  _mm512_store_si512(paired, _mm512_unpacklo_epi16(even, odd));
  _mm512_store_si512(paired + kTileWords, _mm512_unpackhi_epi16(even, odd));
}

// A block of 32 entries x 32 rows, of which the first `count` entries are no padding:
// of(v) gives entry v's gradients.
template <typename Gradients>
SWITCHYARD_TILED_INLINE void store_gradient_block(std::int64_t count, GradientTiles g, const Gradients& of) {
  Word* plain = g.plain;
  for (std::int64_t v = 0; v < 32; v += 2, g.paired += 32) {
    const __m512i even = v < count ? of(v) : _mm512_setzero_si512();
    const __m512i odd = v + 1 < count ? of(v + 1) : _mm512_setzero_si512();
    if (v == 16) plain = g.plain + kRowTile / 32 * kTileWords;
    store_gradients(even, odd, plain + v % 16 * 32, g.paired);
  }
}

// The row (of 32) that a lane of the first or second paired tile holds, see invariant 3.
constexpr std::int64_t row_of_lane(std::int64_t half, std::int64_t lane) {
  return lane / 4 * 8 + half * 4 + lane % 4;
}

// One gradient, of the i-th row of a block's 32 and its entry v.
inline void put_gradient(float gradient, std::int64_t i, std::int64_t v, GradientTiles g) {
  const Word word = bfloat16::round(gradient);
  g.plain[v / 16 * (kRowTile / 32 * kTileWords) + v % 16 * 32 + i] = word;
  const std::int64_t lane = i / 8 * 4 + i % 4;
  g.paired[i % 8 / 4 * kTileWords + v / 2 * 32 + lane * 2 + v % 2] = word;
}

// The place of a tile's 32 entries from b on and its i-th 32 rows.
inline GradientTiles block_of(GradientTiles g, std::int64_t b, std::int64_t i) {
  return {g.plain + (b / 16 * (kRowTile / 32) + i) * kTileWords,
          g.paired + (b / 32 * (kRowTile / 32) + i) * 2 * kTileWords};
}

// dweight tile [kVocabTile][emb] (+)= G . hidden over the rows [r, row_end).
SWITCHYARD_TILED inline void add_dweight(const Fused& f, const Word* plain, std::int64_t count,
                                         std::int64_t r, std::int64_t row_end, float* dweight) {
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
SWITCHYARD_TILED inline void add_dhidden(const Fused& f, const Word* weight_transposed, const Word* paired,
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

SWITCHYARD_TILED inline void store_dweight(const Fused& f, const float* tile, std::int64_t v,
                                           std::int64_t count, Word* dweight) {
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

// Sums the chunks' dhidden^T tiles of 32 rows in chunk order and writes dhidden of the rows from `row` on.
// They are the tiles' r-th rows, of `rows` that a chunk has.
SWITCHYARD_TILED inline void store_dhidden(const Fused& f, const float* tiles, std::int64_t rows,
                                           std::int64_t r, std::int64_t row, float* dhidden) {
  alignas(64) float sums[kMaxEmb * 16], turned[kTileFloats];
  const std::int64_t size = f.emb * 16;
  for (std::int64_t half = 0; half < 2; ++half) {
    std::fill(sums, sums + size, 0.0f);
    for (std::int64_t c = 0; c < f.chunks; ++c) {
      const float* const x = tiles + (c * rows + r) * f.emb + half * size;
      for (std::int64_t i = 0; i < size; i += 16)
        _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_load_ps(x + i)));
    }
    for (std::int64_t e = 0; e < f.args.emb; e += 16) {
      transpose_units(sums + e * 16, 16, turned, 16, 16, 16);
      const auto keep = static_cast<__mmask16>((1u << std::min<std::int64_t>(16, f.args.emb - e)) - 1u);
      for (std::int64_t lane = 0; lane < 16; ++lane) {
        const std::int64_t at = row + row_of_lane(half, lane);
        if (at < f.args.rows)
          _mm512_mask_storeu_ps(dhidden + at * f.args.emb + e, keep, _mm512_load_ps(turned + 16 * lane));
      }
    }
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles
#endif  // x86-64
