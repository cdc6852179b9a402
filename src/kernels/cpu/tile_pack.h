// Packing of bf16 operands into tiles. Included by files that work between SWITCHYARD_TILES_BEGIN and _END.
//
// A tile of A is 16 rows of 32 depth elements. A tile of B is 16 rows, each the pair of depth elements (2r,
// 2r+1) of 16 columns. A panel is 32 lines (rows of A, columns of B): two tiles, 2 KB, for every 32 of depth.
// Interleaving two depth rows gives pairs by line; a 16 x 16 transpose of 32-bit pairs exchanges lines and
// pairs. What a panel lacks in lines or depth is zero.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tile_target.h"

#if defined(__x86_64__)
SWITCHYARD_TILES_BEGIN
namespace switchyard::cpu::SWITCHYARD_TILES {

using Word = std::uint16_t;  // the bits of a bfloat16

constexpr std::int64_t kTileWords = 512;             // one 1 KB tile
constexpr std::int64_t kLines = 32;                  // of a panel
constexpr std::int64_t kStepWords = 2 * kTileWords;  // of a panel, for 32 of depth
constexpr std::int64_t kAhead = 256;  // words of a stored row that are fetched before they are packed

// Up to 32 words, the rest zero; count may be <= 0.
inline __m512i load_words(const Word* x, std::int64_t count) {
  if (count >= 32) return _mm512_loadu_si512(x);
  if (count <= 0) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16((1u << count) - 1u, x);
}

// Rows of 16 32-bit units; out[j][i] = in[i][j].
SWITCHYARD_TILED_INLINE void transpose_units(const __m512i (&in)[16], __m512i (&out)[16]) {
  __m512i s[16], t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    s[i] = _mm512_unpacklo_epi32(in[i], in[i + 1]);
    s[i + 1] = _mm512_unpackhi_epi32(in[i], in[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    t[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
    t[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
    t[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
    t[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
  }
  // t[4q + c] holds, in 128-bit lane l, column 4l + c of rows 4q .. 4q+3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(t[c], t[4 + c], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(t[8 + c], t[12 + c], 0xee);
    out[c] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    out[4 + c] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    out[8 + c] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    out[12 + c] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

SWITCHYARD_TILED_INLINE void store_tile(const __m512i (&rows)[16], Word* tile) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + 32 * i, rows[i]);
}

inline void transpose_16x16(const __m512i (&in)[16], Word* out) {
  __m512i rows[16];
  transpose_units(in, rows);
  store_tile(rows, out);
}

// Pairs (x[i], y[i]) of i = 0..15 and of i = 16..31.
struct Pairs {
  __m512i first;
  __m512i second;
};

inline Pairs interleave(__m512i x, __m512i y) {
  const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);  // in 128-bit lanes
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  return {_mm512_permutex2var_epi64(low, first, high), _mm512_permutex2var_epi64(low, second, high)};
}

// A matrix as it is stored: row i at x + row(i) * ld.
struct Stored {
  const Word* x;
  std::int64_t ld;
  const std::int32_t* rows = nullptr;  // row(i), or null: row(i) = i

  const Word* row(std::int64_t i) const { return x + (rows == nullptr ? i : rows[i]) * ld; }
};

// Below: `lines` <= 32, `depth` elements of each, into a panel of round_up(depth, 32) / 32 steps. Whole panels
// of A; of B half a step at a time, so that it can be done between products.

// Stored rows are lines: row[i] is the first element of one. A's tiles.
__attribute__((noinline)) inline void pack_lines(const Word* const* row, std::int64_t lines,
                                                 std::int64_t depth, Word* out) {
  for (std::int64_t half = 0; half < 2; ++half) {
    const std::int64_t begin = 16 * half, end = std::clamp<std::int64_t>(lines, begin, begin + 16);
    Word* tile = out + half * kTileWords;
    for (std::int64_t l = 0; l < depth; l += 32, tile += kStepWords) {
      const std::int64_t left = depth - l;
      std::int64_t i = begin;
      for (; i < end; ++i) {
        _mm_prefetch(row[i] + l + kAhead, _MM_HINT_T0);
        _mm512_store_si512(tile + (i - begin) * 32, load_words(row[i] + l, left));
      }
      for (; i < begin + 16; ++i) _mm512_store_si512(tile + (i - begin) * 32, _mm512_setzero_si512());
    }
  }
}

// Stored rows are depth, from row `from` on, so lines are neighbours in memory. A's tiles.
__attribute__((noinline)) inline void pack_depth(const Stored& s, std::int64_t line, std::int64_t lines,
                                                 std::int64_t from, std::int64_t depth, Word* out) {
  for (std::int64_t l = 0; l < depth; l += 32, out += kStepWords) {
    __m512i first[16], second[16];
    for (std::int64_t r = 0; r < 16; ++r) {
      const std::int64_t at = l + 2 * r;
      _mm_prefetch(s.row(std::min(from + at + 32, from + depth - 1)) + line, _MM_HINT_T0);
      _mm_prefetch(s.row(std::min(from + at + 33, from + depth - 1)) + line, _MM_HINT_T0);
      const __m512i even = at < depth ? load_words(s.row(from + at) + line, lines) : _mm512_setzero_si512();
      const __m512i odd =
          at + 1 < depth ? load_words(s.row(from + at + 1) + line, lines) : _mm512_setzero_si512();
      const Pairs pairs = interleave(even, odd);
      first[r] = pairs.first;
      second[r] = pairs.second;
    }
    transpose_16x16(first, out);
    transpose_16x16(second, out + kTileWords);
  }
}

// Half a step of B whose stored rows are lines: its tile of 16 lines. x is the first line; `lines` and
// `depth` may be less than 16 and 32, even 0 and less.
inline void pack_lines_of_b(const Word* x, std::int64_t ld, std::int64_t lines, std::int64_t depth,
                            Word* out) {
  __m512i words[16];
  for (std::int64_t i = 0; i < 16; ++i) {
    words[i] = i < lines ? load_words(x + i * ld, depth) : _mm512_setzero_si512();
  }
  transpose_16x16(words, out);
}

// Half a step of B whose stored rows are depth: 8 pairs of them, in both tiles.
inline void pack_depth_of_b(const Word* x, std::int64_t ld, std::int64_t depth, std::int64_t lines,
                            Word* out) {
  for (std::int64_t r = 0; r < 8; ++r, x += 2 * ld) {
    const Pairs pairs = interleave(2 * r < depth ? load_words(x, lines) : _mm512_setzero_si512(),
                                   2 * r + 1 < depth ? load_words(x + ld, lines) : _mm512_setzero_si512());
    _mm512_store_si512(out + 32 * r, pairs.first);
    _mm512_store_si512(out + kTileWords + 32 * r, pairs.second);
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
SWITCHYARD_TILES_END
#endif
