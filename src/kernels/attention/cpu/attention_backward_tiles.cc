// Attention backward for bf16 in tiles (see attention_tiles.h for layouts).
//
// 1. Per key/value head: keys and values are packed once, and per query head the queries
// and dout. Blocks of 256
//    keys x 256 queries are worked on with key blocks outside. dk and dv of a key block and dq of a query
//    block are fp32 sums to which a block adds one product each.
// 2. In a block, strips of 32 x 32 make scores and dp = dout . v, then P = exp(score - lse) and
//    dS = P (dp - delta), rounded to bf16. P and dS are stored [key][query], as left operands of dv = P .
//    dout and dk = dS . q, and dS once more in pairs of keys, as right operand of dq^T = k^T . dS. Pairs are
//    made within 128-bit lanes, which permutes the queries; that is undone when dq is stored.
// 3. Where there are too few heads for the threads, they share a head in waves of blocks. No two blocks of a
//    wave touch one sum. Waves are anti-diagonals (query block + key block constant), so that a sum receives
//    its blocks in ascending order. With a window or chunks they are diagonals, from the keys furthest behind
//    on, as only few of these hold anything: a key's sums then receive their blocks in descending order. A
//    thread alone keeps the order of each sum. So do the bits.
#include "kernels/attention/cpu/attention_tiles.h"

#if defined(__x86_64__)
#include "core/current_memory.h"

namespace switchyard::cpu::SWITCHYARD_TILES {
namespace attention_tiles {
namespace {

// Exponentials and score gradients of a strip of keys x a strip of queries: two tiles each.
constexpr std::int64_t kPairWords = 2 * kTileWords;

// Everything of one key/value head and, of its query heads, the one being worked on.
struct HeadScratch {
  HeadScratch(const AttentionProblem& problem, const Masks& masks)
      : p(problem),
        qk(padded(problem.args.qk_dim)),
        vw(padded(problem.args.v_dim)),
        q_strips(masks.q_strips()),
        kv_strips(masks.kv_strips()),
        words(kStrip * (kv_strips * (2 * qk + vw) + q_strips * 2 * (qk + vw))),
        floats(kStrip * (kv_strips * (qk + vw) + q_strips * (qk + 2))),
        has_keys(static_cast<std::size_t>(kv_strips)),
        has_queries(static_cast<std::size_t>(q_strips)) {}

  Word* k(std::int64_t j) { return words.data() + j * kStrip * qk; }                     // left_positions
  Word* k_t(std::int64_t j) { return k(kv_strips) + j * kStrip * qk; }                   // left_dims
  Word* v(std::int64_t j) { return k_t(kv_strips) + j * kStrip * vw; }                   // left_positions
  Word* q_columns(std::int64_t i) { return v(kv_strips) + i * kStrip * qk; }             // right_positions
  Word* q_pairs(std::int64_t i) { return q_columns(q_strips) + i * kStrip * qk; }        // right_dims
  Word* dout_columns(std::int64_t i) { return q_pairs(q_strips) + i * kStrip * vw; }     // right_positions
  Word* dout_pairs(std::int64_t i) { return dout_columns(q_strips) + i * kStrip * vw; }  // right_dims
  float* dk(std::int64_t j) { return floats.data() + j * kStrip * qk; }                  // blocks [key][dim]
  float* dv(std::int64_t j) { return dk(kv_strips) + j * kStrip * vw; }                  // blocks [key][dim]
  float* dq_t(std::int64_t i) { return dv(kv_strips) + i * kStrip * qk; }  // blocks [dim][query]
  float* lse(std::int64_t i) { return dq_t(q_strips) + i * kStrip; }       // in powers of two
  float* delta(std::int64_t i) { return lse(q_strips) + i * kStrip; }      // dout . out

  HeadRows keys(const void* x, std::int64_t b, std::int64_t j, std::int64_t head, std::int64_t width) const {
    return strip_rows(x, b, j * kStrip, p.args.kv_length, head, p.args.kv_heads, width);
  }
  HeadRows queries(const void* x, std::int64_t b, std::int64_t i, std::int64_t head,
                   std::int64_t width) const {
    return strip_rows(x, b, i * kStrip, p.args.q_length, head, p.args.heads, width);
  }

  void load_keys(std::int64_t b, std::int64_t kv_head, std::int64_t j) {
    prefetch_rows(keys(p.k, b, j + kAhead, kv_head, p.args.qk_dim));
    prefetch_rows(keys(p.v, b, j + kAhead, kv_head, p.args.v_dim));
    pack_strip(keys(p.k, b, j, kv_head, p.args.qk_dim), StripOrder::left_positions, k(j),
               StripOrder::left_dims, k_t(j));
    pack_strip(keys(p.v, b, j, kv_head, p.args.v_dim), StripOrder::left_positions, v(j));
    has_keys[static_cast<std::size_t>(j)] = 0;
  }

  void load_queries(std::int64_t b, std::int64_t head, std::int64_t i) {
    prefetch_rows(queries(p.q, b, i + kAhead, head, p.args.qk_dim));
    prefetch_rows(queries(p.dout, b, i + kAhead, head, p.args.v_dim));
    prefetch_rows(queries(p.out, b, i + kAhead, head, p.args.v_dim));
    pack_strip(queries(p.q, b, i, head, p.args.qk_dim), StripOrder::right_positions, q_columns(i),
               StripOrder::right_dims, q_pairs(i));
    const HeadRows dout = queries(p.dout, b, i, head, p.args.v_dim);
    pack_strip(dout, StripOrder::right_positions, dout_columns(i), StripOrder::right_dims, dout_pairs(i));
    has_queries[static_cast<std::size_t>(i)] = 0;
    dot_rows(dout, queries(p.out, b, i, head, p.args.v_dim), delta(i));
    for (std::int64_t r = 0; r < kStrip; ++r) {
      // A query without keys has lse -infinity; all its scores are -infinity too, and
      // exp(-infinity - 0) is 0.
      const std::int64_t row = (b * p.args.heads + head) * p.args.q_length + i * kStrip + r;
      const float value = r < dout.rows ? p.lse[row] : 0.0f;
      lse(i)[r] = value == -kInfinity ? 0.0f : value * kLog2E;
    }
  }

  SWITCHYARD_TILED static void dot_rows(const HeadRows& x, const HeadRows& y, float* out) {
    for (std::int64_t i = 0; i < kStrip; ++i) {
      __m512 sum = _mm512_setzero_ps();
      for (std::int64_t d = 0; d < x.width; d += 32) {
        sum = _mm512_dpbf16_ps(sum, (__m512bh)dims_of(x, i, d), (__m512bh)dims_of(y, i, d));
      }
      out[i] = _mm512_reduce_add_ps(sum);
    }
  }

  void store_keys(std::int64_t b, std::int64_t kv_head, std::int64_t j) {
    if (!has_keys[static_cast<std::size_t>(j)]) {
      std::fill(dk(j), dk(j) + kStrip * qk, 0.0f);
      std::fill(dv(j), dv(j) + kStrip * vw, 0.0f);
    }
    prefetch_rows<true>(keys(p.dk, b, j + kAhead, kv_head, p.args.qk_dim));
    prefetch_rows<true>(keys(p.dv, b, j + kAhead, kv_head, p.args.v_dim));
    store_plain(dk(j), p.args.scale, keys(p.dk, b, j, kv_head, p.args.qk_dim));
    store_plain(dv(j), 1, keys(p.dv, b, j, kv_head, p.args.v_dim));
  }

  void store_queries(std::int64_t b, std::int64_t head, std::int64_t i) {
    if (!has_queries[static_cast<std::size_t>(i)]) std::fill(dq_t(i), dq_t(i) + kStrip * qk, 0.0f);
    prefetch_rows<true>(queries(p.dq, b, i + kAhead, head, p.args.qk_dim));
    alignas(64) float factor[kStrip];
    std::fill(factor, factor + kStrip, p.args.scale);
    store_transposed(dq_t(i), factor, queries(p.dq, b, i, head, p.args.qk_dim));
  }

  const AttentionProblem& p;
  std::int64_t qk, vw, q_strips, kv_strips;
  Scratch<Word> words;
  Scratch<float> floats;
  std::vector<char> has_keys;     // per strip of keys: dk and dv hold something
  std::vector<char> has_queries;  // per strip of queries: dq_t does
};

// The work on one block of queries x keys, with the buffers for it.
class GradientBlock {
 public:
  GradientBlock(const Masks& masks, HeadScratch& head)
      : masks_(masks),
        head_(head),
        words_(3 * kBlockStrips * kBlockStrips * kPairWords),
        floats_(4 * kBlockFloats) {}

  // Adds the block to dq, dk and dv of its strips.
  SWITCHYARD_TILED void run(std::int64_t batch, std::int64_t q_block, std::int64_t kv_block) {
    batch_ = batch;
    query_ = q_block * kBlockStrips;
    key_ = kv_block * kBlockStrips;
    find_strips();
    if (items_ == 0) return;
    make_gradients();
    for (std::int64_t j = 0; j < kBlockStrips; ++j) add_keys(j);
    for (std::int64_t s = 0; s < kBlockStrips; ++s) add_queries(s);
    open_.close();
  }

 private:
  Word* at(std::int64_t which, std::int64_t j, std::int64_t s) {
    return words_.data() + ((which * kBlockStrips + j) * kBlockStrips + s) * kPairWords;
  }
  Word* weights(std::int64_t j, std::int64_t s) { return at(0, j, s); }    // P, left operand
  Word* gradients(std::int64_t j, std::int64_t s) { return at(1, j, s); }  // dS, left operand
  Word* pairs(std::int64_t j, std::int64_t s) { return at(2, j, s); }      // dS, right operand
  float* scores(std::int64_t i) { return floats_.data() + i % 2 * 2 * kBlockFloats; }
  float* dp(std::int64_t i) { return scores(i) + kBlockFloats; }

  // The strips of keys that each strip of queries sees, and the reverse.
  void find_strips() {
    for (std::int64_t i = 0; i < kBlockStrips; ++i) keys_of_[i] = queries_of_[i] = {};
    items_ = 0;
    for (std::int64_t s = 0; s < std::min(kBlockStrips, head_.q_strips - query_); ++s) {
      for (std::int64_t j = 0; j < std::min(kBlockStrips, head_.kv_strips - key_); ++j) {
        const TileMask mask = masks_.of(batch_, query_ + s, key_ + j);
        if (mask == TileMask::none) continue;
        keys_of_[s].add(j);
        queries_of_[j].add(s);
        item_[items_++] = {s, j, mask == TileMask::some};
      }
    }
  }

  void add_scores(std::int64_t i) {
    const std::int64_t query = query_ + item_[i].query, key = key_ + item_[i].key;
    steps_.add_dims(head_.k(key), head_.q_columns(query), head_.qk, scores(i));
    steps_.add_dims(head_.v(key), head_.dout_columns(query), head_.vw, dp(i));
  }

  // P and dS of all strips, an item's while the tile unit makes the scores and dp of the next.
  SWITCHYARD_TILED void make_gradients() {
    steps_.clear();
    add_scores(0);
    steps_.run(0, 1);
    steps_.close();
    for (std::int64_t i = 0; i < items_; ++i) {
      steps_.clear();
      if (i + 1 < items_) add_scores(i + 1);
      const Item& item = item_[i];
      prefetch(i);
      if (item.masked) masks_.apply(batch_, query_ + item.query, key_ + item.key, scores(i));
      exponentials(item.query, item.key, scores(i), dp(i));
      steps_.close();
    }
  }

  // Brings a part of the next block's queries to L2, where the order of blocks is as in run_alone.
  void prefetch(std::int64_t item) const {
    for (std::int64_t s = query_ + kBlockStrips; s < std::min(query_ + 2 * kBlockStrips, head_.q_strips);
         ++s) {
      const std::int64_t qk = kStrip * head_.qk, vw = kStrip * head_.vw;
      prefetch_part(head_.q_columns(s), qk, item, items_);
      prefetch_part(head_.q_pairs(s), qk, item, items_);
      prefetch_part(head_.dout_columns(s), vw, item, items_);
      prefetch_part(head_.dout_pairs(s), vw, item, items_);
      prefetch_part(head_.dq_t(s), qk, item, items_);
    }
  }

  SWITCHYARD_TILED void exponentials(std::int64_t s, std::int64_t j, const float* score, const float* dp_at) {
    const float *lse = head_.lse(query_ + s), *delta = head_.delta(query_ + s);
    const __m512 lse_low = _mm512_load_ps(lse), lse_high = _mm512_load_ps(lse + 16);
    const __m512 delta_low = _mm512_load_ps(delta), delta_high = _mm512_load_ps(delta + 16);
    const __m512 scale = _mm512_set1_ps(head_.p.args.scale * kLog2E);
    Word *p = weights(j, s), *ds = gradients(j, s), *pair = pairs(j, s);
    for (std::size_t part = 0; part < 8; ++part) {
      steps_.run(part, 8);
      const std::size_t first = part / 4 * 2 * kTileFloats + part % 4 * 64;
      for (std::size_t r = 0; r < 4; r += 2, p += 64, ds += 64, pair += 32) {
        __m512i low_ds[2], high_ds[2];
#pragma GCC unroll 2
        for (std::size_t k = 0; k < 2; ++k) {
          const float *x = score + first + (r + k) * 16, *y = dp_at + first + (r + k) * 16;
          const __m512 low = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(x), scale, lse_low));
          const __m512 high = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(x + kTileFloats), scale, lse_high));
          _mm512_store_si512(p + 32 * k, paired(rounded(low), rounded(high)));
          low_ds[k] = rounded(_mm512_mul_ps(low, _mm512_sub_ps(_mm512_load_ps(y), delta_low)));
          high_ds[k] =
              rounded(_mm512_mul_ps(high, _mm512_sub_ps(_mm512_load_ps(y + kTileFloats), delta_high)));
          _mm512_store_si512(ds + 32 * k, paired(low_ds[k], high_ds[k]));
        }
        _mm512_store_si512(pair, paired(low_ds[0], low_ds[1]));
        _mm512_store_si512(pair + kTileWords, paired(high_ds[0], high_ds[1]));
      }
    }
  }

  // dv += P . dout and dk += dS . q of key strip j.
  SWITCHYARD_TILED void add_keys(std::int64_t j) {
    const StripList& list = queries_of_[j];
    if (list.count == 0) return;
    char& filled = head_.has_keys[static_cast<std::size_t>(key_ + j)];
    for (std::int64_t e = 0; e < head_.vw / 32; ++e) {
      multiply_strips(weights(j, 0), kPairWords, head_.dout_pairs(query_) + e * kPairWords, kStrip * head_.vw,
                      list, head_.dv(key_ + j) + e * kBlockFloats, filled != 0, open_);
    }
    for (std::int64_t e = 0; e < head_.qk / 32; ++e) {
      multiply_strips(gradients(j, 0), kPairWords, head_.q_pairs(query_) + e * kPairWords, kStrip * head_.qk,
                      list, head_.dk(key_ + j) + e * kBlockFloats, filled != 0, open_);
    }
    filled = 1;
  }

  // dq^T += k^T . dS of query strip s.
  SWITCHYARD_TILED void add_queries(std::int64_t s) {
    const StripList& list = keys_of_[s];
    if (list.count == 0) return;
    char& filled = head_.has_queries[static_cast<std::size_t>(query_ + s)];
    for (std::int64_t e = 0; e < head_.qk / 32; ++e) {
      multiply_strips(head_.k_t(key_) + e * kPairWords, kStrip * head_.qk, pairs(0, s),
                      kBlockStrips * kPairWords, list, head_.dq_t(query_ + s) + e * kBlockFloats, filled != 0,
                      open_);
    }
    filled = 1;
  }

  const Masks& masks_;
  HeadScratch& head_;
  Scratch<Word> words_;
  Scratch<float> floats_;
  std::int64_t batch_ = 0, query_ = 0, key_ = 0;
  StripList keys_of_[kBlockStrips], queries_of_[kBlockStrips];
  // A strip of queries of the block against a strip of its keys.
  struct Item {
    std::int64_t query, key;
    bool masked;
  };
  Item item_[kBlockStrips * kBlockStrips];
  std::int64_t items_ = 0;
  TileSteps steps_;
  OpenBlock open_;  // of dk, dv or dq
};

std::int64_t blocks_of(std::int64_t strips) {
  return (strips + kBlockStrips - 1) / kBlockStrips;
}

struct Block {
  std::int64_t query, key;
};

// The blocks of a sequence that hold something, in waves (3. above).
std::vector<std::vector<Block>> waves_of(const Masks& masks, std::int64_t batch, bool diagonals) {
  const std::int64_t q_blocks = blocks_of(masks.q_strips()), kv_blocks = blocks_of(masks.kv_strips());
  const auto holds = [&](const Block& block) {
    const std::int64_t query_end = std::min((block.query + 1) * kBlockStrips, masks.q_strips()),
                       key_end = std::min((block.key + 1) * kBlockStrips, masks.kv_strips());
    for (std::int64_t i = block.query * kBlockStrips; i < query_end; ++i) {
      for (std::int64_t j = block.key * kBlockStrips; j < key_end; ++j)
        if (masks.of(batch, i, j) != TileMask::none) return true;
    }
    return false;
  };
  std::vector<std::vector<Block>> waves;
  for (std::int64_t wave = 0; wave < q_blocks + kv_blocks - 1; ++wave) {
    std::vector<Block> blocks;
    for (std::int64_t j = 0; j < kv_blocks; ++j) {
      const Block block{diagonals ? q_blocks - 1 - wave + j : wave - j, j};
      if (block.query >= 0 && block.query < q_blocks && holds(block)) blocks.push_back(block);
    }
    if (!blocks.empty()) waves.push_back(std::move(blocks));
  }
  return waves;
}

// One key/value head by one thread.
void run_alone(const AttentionProblem& p, const Masks& masks, HeadScratch& scratch, std::int64_t b,
               std::int64_t kv_head) {
  GradientBlock block(masks, scratch);
  const std::int64_t group = p.args.heads / p.args.kv_heads;
  for (std::int64_t j = 0; j < scratch.kv_strips; ++j) scratch.load_keys(b, kv_head, j);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (std::int64_t i = 0; i < scratch.q_strips; ++i) scratch.load_queries(b, head, i);
    const std::int64_t q_blocks = blocks_of(scratch.q_strips);
    for (std::int64_t j = 0; j < blocks_of(scratch.kv_strips); ++j) {
      for (std::int64_t i = 0; i < q_blocks; ++i)
        block.run(b, p.args.seen.limits() ? q_blocks - 1 - i : i, j);
    }
    for (std::int64_t i = 0; i < scratch.q_strips; ++i) scratch.store_queries(b, head, i);
  }
  for (std::int64_t j = 0; j < scratch.kv_strips; ++j) scratch.store_keys(b, kv_head, j);
}

// One key/value head by all threads.
void run_shared(ThreadPool& pool, const AttentionProblem& p, const Masks& masks, HeadScratch& scratch,
                std::int64_t b, std::int64_t kv_head) {
  const std::int64_t group = p.args.heads / p.args.kv_heads;
  const auto waves = waves_of(masks, b, p.args.seen.limits());
  const auto each = [&](std::int64_t count, const auto& body) {
    pool.for_range(count, 4, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(i);
    });
  };
  each(scratch.kv_strips, [&](std::int64_t j) { scratch.load_keys(b, kv_head, j); });
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    each(scratch.q_strips, [&](std::int64_t i) { scratch.load_queries(b, head, i); });
    for (const std::vector<Block>& blocks : waves) {
      pool.for_range(static_cast<std::int64_t>(blocks.size()), 1, [&](std::int64_t at, std::int64_t at_end) {
        const TileSession session;
        GradientBlock work(masks, scratch);
        for (; at < at_end; ++at) {
          const Block& block = blocks[static_cast<std::size_t>(at)];
          work.run(b, block.query, block.key);
        }
      });
    }
    each(scratch.q_strips, [&](std::int64_t i) { scratch.store_queries(b, head, i); });
  }
  each(scratch.kv_strips, [&](std::int64_t j) { scratch.store_keys(b, kv_head, j); });
}

}  // namespace
}  // namespace attention_tiles

void attention_backward(ThreadPool& pool, const AttentionProblem& p) {
  using namespace attention_tiles;
  const Masks masks(p.args);
  const std::int64_t heads = p.args.batch * p.args.kv_heads;
  if (pool.threads() == 1 || heads >= 2 * pool.threads()) {
    pool.for_range(heads, 1, [&](std::int64_t begin, std::int64_t end) {
      const TileSession session;
      HeadScratch scratch(p, masks);
      for (std::int64_t i = begin; i < end; ++i) {
        run_alone(p, masks, scratch, i / p.args.kv_heads, i % p.args.kv_heads);
      }
    });
    return;
  }
  const UnchargedScope uncharged;  // scratch of threads, as above
  HeadScratch scratch(p, masks);
  for (std::int64_t i = 0; i < heads; ++i) {
    run_shared(pool, p, masks, scratch, i / p.args.kv_heads, i % p.args.kv_heads);
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif  // x86-64
