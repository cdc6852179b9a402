// The fused loss with its gradients, in tiles, as cross_entropy_tiles.cc makes them but with the logits made
// once: the exponentials of a block of rows wait in bf16, relative to the maximum of their strip, until the
// rows' sums are known.
//
// 1. So a gradient is rounded twice, the exponential and its product with the rest. A target's is made from
//    its logit: near 1 its probability would lose all that is left of it.
// 2. Blocks follow from the shape alone. dweight is added up over them in float32: in a buffer of its own
//    where there is more than one, since a block's rows meet all of the vocabulary.
#include "kernels/loss/cross_entropy_problem.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>

#include "kernels/loss/cpu/cross_entropy_tiles_gradient.h"

namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

using namespace cross_entropy_tiles;

struct Sizes {
  Sizes(const Fused& f, const CrossEntropyProblem& args)
      : block(std::min(f.rows, args.rows_at_once)),
        entries(round_up(args.vocab, kVocabTile)),
        dweight(args.weight_trains && block < f.rows ? entries * f.emb : 0) {}
  std::int64_t block;    // most rows at a time
  std::int64_t entries;  // of the vocabulary, padded
  std::int64_t dweight;  // floats that wait
};

// 32 bf16 as floats, times the rows' scale, rounded.
SWITCHYARD_TILED_INLINE __m512i scaled_words(const Word* kept, const __m512 (&scale)[2]) {
  const __m512i x = _mm512_load_si512(kept);
  const __m512i low = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(x)), 16);
  const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1)), 16);
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_castsi512_ps(high), scale[1]),
                                      _mm512_mul_ps(_mm512_castsi512_ps(low), scale[0]));
}

// Rows of a block.
struct Rows {
  std::int64_t begin, end;  // of all; `end` padded
};

// All rows of a block with the vocabulary in one of the chunks.
class ChunkGradients {
 public:
  ChunkGradients(const Fused& f, Rows rows, const RowConstants& constants, const float* target_logit,
                 const KeptExponentials& kept)
      : f_(f), rows_(rows), constants_(constants), target_logit_(target_logit), kept_(kept) {}

  // `waiting`: dweight [entries][emb] of the blocks before, or null where there is one block only.
  void add(std::int64_t chunk, float* dhidden, float* waiting, Word* dweight) const {
    Buffer weight_transposed = word_buffer(kVocabTile * f_.emb);
    Buffer plain = word_buffer(kVocabTile * kRowTile), paired = word_buffer(kVocabTile * kRowTile);
    Buffer tile = float_buffer(f_.args.weight_trains && waiting == nullptr ? kVocabTile * f_.emb : 0);
    const GradientTiles g{words(plain), words(paired)};
    const TileSession session;
    const std::int64_t begin = chunk * f_.chunk, end = std::min(f_.args.vocab, begin + f_.chunk);
    for (std::int64_t v = begin; v < end; v += kVocabTile) {
      const std::int64_t count = std::min(kVocabTile, end - v);
      float* const sums = waiting == nullptr ? floats(tile) : waiting + v * f_.emb;
      f_.pack_weight_transposed(v, words(weight_transposed));
      for (std::int64_t r = rows_.begin; r < rows_.end; r += kRowTile) {
        const std::int64_t row_end = std::min(rows_.end, r + kRowTile);
        make_gradients(v, count, r, row_end, g);
        if (f_.args.weight_trains) add_dweight(f_, g.plain, count, r, row_end, sums);
        add_dhidden(f_, words(weight_transposed), g.paired, count, r - rows_.begin, row_end - rows_.begin,
                    v > begin, dhidden);
      }
      if (f_.args.weight_trains && rows_.end == f_.rows) store_dweight(f_, sums, v, count, dweight);
    }
  }

 private:
  // Makes those of the entries [v, v + count) and the rows [r, row_end).
  SWITCHYARD_TILED void make_gradients(std::int64_t v, std::int64_t count, std::int64_t r,
                                       std::int64_t row_end, GradientTiles g) const {
    const std::int64_t first = f_.args.vocab_begin + v;
    for (std::int64_t row = r; row < row_end; row += 32) {
      const std::int64_t of_block = row - rows_.begin, i = (row - r) / 32;
      __m512 scale[2];
      for (std::int64_t b = 0; b < count; b += 32) {
        if (b % kStripEntries == 0) {
          for (int half = 0; half < 2; ++half) scale[half] = scale_of(row + 16 * half, v + b);
        }
        const Word* const kept = kept_.of(of_block, v + b);
        store_gradient_block(count - b, block_of(g, b, i), [&](std::int64_t entry) SWITCHYARD_TILED {
          return scaled_words(kept + 32 * entry, scale);
        });
      }
      for (std::int64_t at = row; at < std::min(row + 32, f_.args.rows); ++at) {
        const std::int64_t target = f_.args.targets[at] - first;
        if (target < 0 || target >= count) continue;
        const float p = std::exp(target_logit_[at] - constants_.lse[at]);
        put_gradient(constants_.softmax[at] * p - constants_.target[at], at - row, target % 32,
                     block_of(g, target / 32 * 32, i));
      }
    }
  }
  SWITCHYARD_TILED __m512 scale_of(std::int64_t row, std::int64_t entry) const {
    const __m512 below = _mm512_sub_ps(_mm512_load_ps(kept_.maximum_of(row - rows_.begin, entry)),
                                       _mm512_load_ps(constants_.lse + row));
    return _mm512_mul_ps(_mm512_load_ps(constants_.softmax + row),
                         exp2_vector(_mm512_mul_ps(below, _mm512_set1_ps(kLog2E))));
  }

  const Fused& f_;
  const Rows rows_;
  const RowConstants constants_;
  const float* const target_logit_;
  const KeptExponentials& kept_;
};

}  // namespace

const char* cross_entropy_gradients_refuses(const CrossEntropyProblem& args) {
#if !defined(SWITCHYARD_SOFT_TILES)
  // With AMX's costs: 7 to 25 % slower than another product and exponential at a width of 64, up to 20 %
  // faster at 128, 8 to 32 % at 512.
  constexpr std::int64_t kLeastEmb = 128;
  if (args.emb < kLeastEmb)
    return "takes at least 128 model dims: below, exponentials from memory are no faster";
#endif
  return cross_entropy_refuses(args);
}

std::size_t cross_entropy_gradients_bytes(const CrossEntropyProblem& args) {
  const Fused f(args, false);
  const Sizes sizes(f, args);
  const std::int64_t words = 2 * f.rows * f.emb + sizes.block * sizes.entries;
  const std::int64_t floats =
      sizes.block * (sizes.entries / kStripEntries + f.chunks * (2 + f.emb)) + sizes.dweight + 3 * f.rows;
  return static_cast<std::size_t>(words) * sizeof(Word) + static_cast<std::size_t>(floats) * sizeof(float);
}

void cross_entropy_gradients(ThreadPool& pool, const CrossEntropyProblem& args) {
  Fused f(args);
  f.pack_hidden(pool, true);
  const Sizes sizes(f, args);
  std::fill(args.target_logit, args.target_logit + args.rows, 0.0f);
  Buffer maxima = float_buffer(f.chunks * sizes.block), sums = float_buffer(f.chunks * sizes.block);
  Buffer kept_words = word_buffer(sizes.block * sizes.entries);
  Buffer kept_maxima = float_buffer(sizes.block * (sizes.entries / kStripEntries));
  const KeptExponentials kept{words(kept_words), floats(kept_maxima), sizes.entries, sizes.block};
  Buffer dhidden_tiles = float_buffer(f.chunks * sizes.block * f.emb), waiting = float_buffer(sizes.dweight);
  PaddedRows padded(f.rows);
  for (std::int64_t row = 0; row < f.rows; row += sizes.block) {
    const Rows rows{row, std::min(f.rows, row + sizes.block)};
    const std::int64_t count = rows.end - row, end = std::min(args.rows, rows.end);
    reset_sums(f.chunks * sizes.block, floats(maxima), floats(sums));
    pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
      Buffer weight = word_buffer(kVocabTile * f.emb), strips = float_buffer(2 * kStripEntries * 32);
      const TileSession session;
      const std::int64_t last = std::min(args.vocab, (chunk + 1) * f.chunk);
      for (std::int64_t v = chunk * f.chunk; v < last; v += kVocabTile) {
        f.pack_weight(v, words(weight));
        forward_tile<true>(f, words(weight), v, std::min(kVocabTile, last - v), row, rows.end, floats(strips),
                           floats(maxima) + chunk * sizes.block, floats(sums) + chunk * sizes.block,
                           args.target_logit, kept);
      }
    });
    merge_chunks(pool, f.chunks, sizes.block, floats(maxima), floats(sums), end - row, args.lse + row);
    (*args.summed)(row, end);
    padded.set(row, end, args.lse, args.softmax, args.target);
    const ChunkGradients gradients(f, rows, padded.constants(), args.target_logit, kept);
    pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
      gradients.add(chunk, floats(dhidden_tiles) + chunk * sizes.block * f.emb,
                    sizes.dweight == 0 ? nullptr : floats(waiting), static_cast<Word*>(args.dweight));
    });
    pool.for_range(count / 32, 1, [&](std::int64_t block, std::int64_t) {
      store_dhidden(f, floats(dhidden_tiles), sizes.block, block * 32, row + block * 32, args.dhidden);
    });
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif  // x86-64
