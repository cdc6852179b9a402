// The operands of the fused loss as tiles (internal to cross_entropy_tiles.cc).
#pragma once

#include "kernels/loss/cross_entropy_problem.h"

#if defined(__x86_64__)
#include <algorithm>

#include "core/tensor.h"
#include "kernels/cpu/tile_pack.h"

namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles {

constexpr std::int64_t kVocabTile = 256;
// Chunks are what threads share out: as many as 64, for machines with many cores. Every chunk has dhidden to
// write and to be added up, so where there would be more than 8 each is worth that (1024 entries), and
// together they take no more than this much memory.
constexpr std::int64_t kLeastChunks = 8, kMostChunks = 64;
constexpr std::int64_t kChunkEntries = 1024;
constexpr std::int64_t kChunkBytes = std::int64_t{128} << 20;

inline std::int64_t ceil_div(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}
inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// ---- Packing
// -------------------------------------------------------------------------------------------------------

// tile[i][:] = x[i][0..32); rows and columns past the given counts are zero.
SWITCHYARD_TILED inline void copy_tile(const Word* x, std::int64_t ld, std::int64_t rows,
                                       std::int64_t columns, Word* tile) {
  for (std::int64_t i = 0; i < 16; ++i, tile += 32) {
    _mm512_store_si512(tile, i < rows ? load_words(x + i * ld, columns) : _mm512_setzero_si512());
  }
}

// tile[p][n] = the pair (x[2p][n], x[2p+1][n]) for n < 16.
SWITCHYARD_TILED inline void pair_rows_tile(const Word* x, std::int64_t ld, std::int64_t rows,
                                            std::int64_t columns, Word* tile) {
  columns = std::min<std::int64_t>(columns, 16);
  for (std::int64_t p = 0; p < 16; ++p, tile += 32) {
    const __m512i even = 2 * p < rows ? load_words(x + 2 * p * ld, columns) : _mm512_setzero_si512();
    const __m512i odd = 2 * p + 1 < rows ? load_words(x + (2 * p + 1) * ld, columns) : _mm512_setzero_si512();
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(even));
    const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(odd)), 16);
    _mm512_store_si512(tile, _mm512_or_si512(low, high));
  }
}

// out[i][j] = in[j][i] for `rows` x `columns` of a tile of 16 x 16 units; strides in units.
// All of `in` is read.
SWITCHYARD_TILED inline void transpose_units(const void* in, std::int64_t in_stride, void* out,
                                             std::int64_t out_stride, std::int64_t rows,
                                             std::int64_t columns) {
  __m512i lines[16], turned[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_loadu_si512(static_cast<const int*>(in) + i * in_stride);
  SWITCHYARD_TILES::transpose_units(lines, turned);
  const auto keep = static_cast<__mmask16>((1u << columns) - 1u);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i < rows) _mm512_mask_storeu_epi32(static_cast<int*>(out) + i * out_stride, keep, turned[i]);
  }
}

inline void transpose_tile(const Word* in, Word* out) {
  transpose_units(in, 16, out, 16, 16, 16);
}

// tile[i][:] = x[0..32)[i]: the transpose of copy_tile.
inline void copy_transposed_tile(const Word* x, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                                 Word* tile) {
  alignas(64) Word pairs[kTileWords];
  pair_rows_tile(x, ld, rows, columns, pairs);
  transpose_tile(pairs, tile);
}

// tile[p][n] = the pair (x[n][2p], x[n][2p+1]): the transpose of pair_rows_tile.
inline void pair_columns_tile(const Word* x, std::int64_t ld, std::int64_t rows, std::int64_t columns,
                              Word* tile) {
  alignas(64) Word lines[kTileWords];
  copy_tile(x, ld, rows, columns, lines);
  transpose_tile(lines, tile);
}

// ---- The packed problem
// --------------------------------------------------------------------------------------------

struct Fused {
  explicit Fused(const CrossEntropyProblem& a, bool allocate = true)
      : args(a),
        emb(round_up(a.emb, 32)),
        rows(round_up(a.rows, 32)),
        chunk(chunk_for(a.vocab, rows * emb)),
        chunks((a.vocab + chunk - 1) / chunk),
        by_row(allocate ? static_cast<std::size_t>(rows * emb) * sizeof(Word) : 0),
        by_emb(allocate ? static_cast<std::size_t>(rows * emb) * sizeof(Word) : 0) {}

  const CrossEntropyProblem& args;
  std::int64_t emb;    // padded
  std::int64_t rows;   // padded
  std::int64_t chunk;  // vocabulary entries of a chunk
  std::int64_t chunks;
  Buffer by_row;  // hidden as right operand of the logits: tiles [rows/16][emb/32] of (emb pair, row)
  Buffer by_emb;  // hidden as right operand of dweight: tiles [rows/32][emb/16] of (row pair, emb)

  static std::int64_t chunk_for(std::int64_t vocab, std::int64_t dhidden) {
    const auto fit = kChunkBytes / (std::max<std::int64_t>(1, dhidden) * std::int64_t{sizeof(float)});
    const std::int64_t most = std::clamp(std::min(fit, vocab / kChunkEntries), kLeastChunks, kMostChunks);
    return round_up(std::max<std::int64_t>(1, (vocab + most - 1) / most), kVocabTile);
  }

  const Word* hidden_by_row(std::int64_t row) const {
    return reinterpret_cast<const Word*>(const_cast<Buffer&>(by_row).data()) +
           row / 16 * (emb / 32) * kTileWords;
  }
  const Word* hidden_by_emb(std::int64_t row) const {
    return reinterpret_cast<const Word*>(const_cast<Buffer&>(by_emb).data()) +
           row / 32 * (emb / 16) * kTileWords;
  }

  void pack_hidden(ThreadPool& pool, bool backward) {
    const auto* hidden = static_cast<const Word*>(args.hidden);
    pool.for_range(rows / 32, 8, [&, hidden](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * 32; r < end * 32; r += 16) {
        auto* tile = const_cast<Word*>(hidden_by_row(r));
        for (std::int64_t e = 0; e < emb; e += 32, tile += kTileWords) {
          pair_columns_tile(hidden + r * args.emb + e, args.emb, args.rows - r, args.emb - e, tile);
        }
      }
      for (std::int64_t r = begin * 32; backward && r < end * 32; r += 32) {
        auto* tile = const_cast<Word*>(hidden_by_emb(r));
        for (std::int64_t e = 0; e < emb; e += 16, tile += kTileWords) {
          pair_rows_tile(hidden + r * args.emb + e, args.emb, args.rows - r, args.emb - e, tile);
        }
      }
    });
  }

  // Left operand of the logits for vocabulary entries [v, v + kVocabTile): tiles [vocab/16][emb/32].
  void pack_weight(std::int64_t v, Word* out) const {
    const auto* weight = static_cast<const Word*>(args.weight);
    const std::int64_t end = std::min(round_up(args.vocab, 32), v + kVocabTile);
    for (; v < end; v += 16) {
      for (std::int64_t e = 0; e < emb; e += 32, out += kTileWords) {
        if (args.weight_vocab_major) {
          copy_tile(weight + v * args.emb + e, args.emb, args.vocab - v, args.emb - e, out);
        } else {
          copy_transposed_tile(weight + e * args.vocab + v, args.vocab, args.emb - e, args.vocab - v, out);
        }
      }
    }
  }

  // Left operand of dhidden^T for the same entries: tiles [emb/16][kVocabTile/32].
  void pack_weight_transposed(std::int64_t v_begin, Word* out) const {
    const auto* weight = static_cast<const Word*>(args.weight);
    for (std::int64_t e = 0; e < emb; e += 16) {
      for (std::int64_t v = v_begin; v < v_begin + kVocabTile; v += 32, out += kTileWords) {
        if (args.weight_vocab_major) {
          copy_transposed_tile(weight + v * args.emb + e, args.emb, args.vocab - v, args.emb - e, out);
        } else {
          copy_tile(weight + e * args.vocab + v, args.vocab, args.emb - e, args.vocab - v, out);
        }
      }
    }
  }
};

}  // namespace switchyard::cpu::SWITCHYARD_TILES::cross_entropy_tiles
#endif
