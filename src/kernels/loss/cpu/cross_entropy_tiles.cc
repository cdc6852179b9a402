// Fused output projection and cross-entropy for bf16 and a narrow model, in tiles.
//
// 1. Logits are made transposed, [vocab][row]: a vector holds one vocabulary entry of 16 rows,
// so maxima and sums over
//    the vocabulary need no shuffles and the per-row constants sit in registers.
// 2. A strip of logits stays in L1 between the product and the exponentials, which are made while the tile
//    unit makes the next strip.
// 3. The gradient of a logit is rounded to bf16 once and stored twice: as it
// is ([vocab][row], left operand of
//    dweight = G . hidden) and in pairs of vocabulary entries (right operand of dhidden^T = weight^T . G).
//    Pairs are interleaved within 128-bit lanes only, which permutes the rows; row_of_lane undoes it when
//    dhidden is written.
// 4. The vocabulary is split into chunks that follow from the shape alone. A chunk is one unit of parallel
// work with its
//    own sums, added in chunk order: the result does not depend on the threads.
//
// Every packed operand is made of 1 KB tiles, 16 rows of 64 bytes, as AMX loads them. "Units" are 32-bit: a
// bf16 pair or a float.
#include "kernels/loss/cross_entropy_problem.h"

#if defined(__x86_64__)
#include <algorithm>
#include <cmath>

#include "kernels/loss/cpu/cross_entropy_tiles_gradient.h"

namespace switchyard::cpu::SWITCHYARD_TILES {
namespace {

using namespace cross_entropy_tiles;

// Gradients of one vocabulary entry's 32 rows as bf16.
SWITCHYARD_TILED_INLINE __m512i gradient_words(const float* x, const __m512 (&lse)[2],
                                               const __m512 (&scale)[2]) {
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  // Subtracted before the product: an fma would save an operation and lose digits when lse is large.
  const __m512 low = exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x), lse[0]), log2e));
  const __m512 high = exp2_vector(_mm512_mul_ps(_mm512_sub_ps(_mm512_load_ps(x + 16), lse[1]), log2e));
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, scale[1]), _mm512_mul_ps(low, scale[0]));
}

// Subtracts the target's coefficient for the rows whose target is among the `count` entries from global id
// `first`, whose logits these are.
void subtract_targets(const CrossEntropyProblem& args, const float* logits, std::int64_t first,
                      std::int64_t count, const RowConstants& rows, std::int64_t r, GradientTiles g) {
  for (std::int64_t i = 0; i < 32 && r + i < args.rows; ++i) {
    const std::int64_t v = args.targets[r + i] - first;
    if (v < 0 || v >= count) continue;
    const float p = std::exp(logits[v * 32 + i] - rows.lse[r + i]);
    put_gradient(rows.softmax[r + i] * p - rows.target[r + i], i, v, g);
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
    const std::int64_t row = r + 32 * i;
    const GradientTiles at = block_of(g, b, i);
    const __m512 lse[2] = {_mm512_load_ps(constants.lse + row), _mm512_load_ps(constants.lse + row + 16)};
    const __m512 scale[2] = {_mm512_load_ps(constants.softmax + row),
                             _mm512_load_ps(constants.softmax + row + 16)};
    store_gradient_block(count - b, at, [&](std::int64_t entry) SWITCHYARD_TILED {
      return gradient_words(logits + 32 * entry, lse, scale);
    });
    subtract_targets(f.args, logits, f.args.vocab_begin + v + b, std::min<std::int64_t>(32, count - b),
                     constants, row, at);
    if (block + 1 < blocks) store_logits(held, buffers[(block + 1) % 2]);
  }
}

void backward_chunk(const Fused& f, std::int64_t chunk, const RowConstants& constants, float* dhidden,
                    Word* dweight) {
  Buffer weight = word_buffer(kVocabTile * f.emb), weight_transposed = word_buffer(kVocabTile * f.emb);
  Buffer plain = word_buffer(kVocabTile * kRowTile), paired = word_buffer(kVocabTile * kRowTile);
  const bool trains = f.args.weight_trains;
  Buffer dweight_tile = float_buffer(trains ? kVocabTile * f.emb : 0);
  const TileSession session;
  const std::int64_t begin = chunk * f.chunk, end = std::min(f.args.vocab, begin + f.chunk);
  for (std::int64_t v = begin; v < end; v += kVocabTile) {
    const std::int64_t count = std::min(kVocabTile, end - v);
    f.pack_weight(v, words(weight));
    f.pack_weight_transposed(v, words(weight_transposed));
    for (std::int64_t r = 0; r < f.rows; r += kRowTile) {
      const std::int64_t row_end = std::min(f.rows, r + kRowTile);
      gradient_tile(f, words(weight), v, count, constants, r, row_end, {words(plain), words(paired)});
      if (trains) add_dweight(f, words(plain), count, r, row_end, floats(dweight_tile));
      add_dhidden(f, words(weight_transposed), words(paired), count, r, row_end, v > begin, dhidden);
    }
    if (trains) store_dweight(f, floats(dweight_tile), v, count, dweight);
  }
}

}  // namespace

const char* cross_entropy_refuses(const CrossEntropyProblem& args) {
  if (args.dtype != DType::bf16) return "takes bfloat16 only";
  if (args.emb > kMaxEmb) return "takes at most 512 model dims: above, tiled products are faster";
  if (args.emb < 1 || args.rows < 1 || args.vocab < 1) return "needs at least one row, model dim and column";
  if (args.logit_soft_cap > 0) return "has no soft cap";
  return nullptr;
}

std::size_t cross_entropy_bytes(const CrossEntropyProblem& args) {
  const Fused f(args, false);
  return static_cast<std::size_t>(2 * f.rows * f.emb) * sizeof(Word) +
         static_cast<std::size_t>(2 * f.chunks * f.rows) * sizeof(float);
}

std::size_t cross_entropy_backward_bytes(const CrossEntropyProblem& args) {
  const Fused f(args, false);
  return static_cast<std::size_t>(2 * f.rows * f.emb) * sizeof(Word) +
         static_cast<std::size_t>((3 + f.chunks * f.emb) * f.rows) * sizeof(float);
}

void cross_entropy(ThreadPool& pool, const CrossEntropyProblem& args) {
  Fused f(args);
  f.pack_hidden(pool, false);
  std::fill(args.target_logit, args.target_logit + args.rows, 0.0f);
  Buffer maxima = float_buffer(f.chunks * f.rows), sums = float_buffer(f.chunks * f.rows);
  reset_sums(f.chunks * f.rows, floats(maxima), floats(sums));
  pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
    Buffer weight = word_buffer(kVocabTile * f.emb), strips = float_buffer(2 * kStripEntries * 32);
    const TileSession session;
    const std::int64_t end = std::min(args.vocab, (chunk + 1) * f.chunk);
    for (std::int64_t v = chunk * f.chunk; v < end; v += kVocabTile) {
      f.pack_weight(v, words(weight));
      forward_tile<false>(f, words(weight), v, std::min(kVocabTile, end - v), 0, f.rows, floats(strips),
                          floats(maxima) + chunk * f.rows, floats(sums) + chunk * f.rows, args.target_logit,
                          {});
    }
  });
  merge_chunks(pool, f.chunks, f.rows, floats(maxima), floats(sums), args.rows, args.lse);
}

void cross_entropy_backward(ThreadPool& pool, const CrossEntropyProblem& args) {
  Fused f(args);
  f.pack_hidden(pool, true);
  PaddedRows rows(f.rows);
  rows.set(0, args.rows, args.lse, args.softmax, args.target);
  Buffer dhidden_tiles = float_buffer(f.chunks * f.rows * f.emb);
  pool.for_range(f.chunks, 1, [&](std::int64_t chunk, std::int64_t) {
    backward_chunk(f, chunk, rows.constants(), floats(dhidden_tiles) + chunk * f.rows * f.emb,
                   static_cast<Word*>(args.dweight));
  });
  pool.for_range(f.rows / 32, 1, [&](std::int64_t block, std::int64_t) {
    store_dhidden(f, floats(dhidden_tiles), f.rows, block * 32, block * 32, args.dhidden);
  });
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif  // x86-64
