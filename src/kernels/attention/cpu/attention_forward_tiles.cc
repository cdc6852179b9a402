// Attention forward for bf16 in tiles (see attention_tiles.h for layouts).
//
// 1. Keys and transposed values are packed once for all query heads that read them.
// 2. A task is 256 queries of one head, taken against blocks of 256 keys. Its unit is an
// item: 32 queries x 32
//    keys, whose exponentials are made while the tile unit makes the scores of the next item and adds the
//    values of a group of items before.
// 3. A query's exponentials are taken relative to `shift`, the maximum of its first
// keys. It follows the maximum
//    only when the exponentials of an item pass kLimit, which their sum tells; then the item is done again
//    and what was summed is rescaled. There is no pass for the maximum, and overflow is impossible.
// 4. out^T [dim][query] grows by one product a group of up to kGroup items.
#include "kernels/attention/cpu/attention_tiles.h"

#if defined(__x86_64__)
#include <cmath>

namespace switchyard::cpu::SWITCHYARD_TILES {
namespace attention_tiles {
namespace {

constexpr float kLimit = 8192;  // sum over 32 keys: each at most that large, far below the range of a float
// Exponentials of two groups are 16 KB: in L1 with the scores and queries in use.
constexpr std::int64_t kGroup = 4;
constexpr float kLowest = -1e30f;  // a maximum before any score; finite, so that differences are no NaN

// Keys as left operand of the scores, values transposed as left operand of out^T: [B][Nkv][strips].
struct PackedKeys {
  PackedKeys(const AttentionProblem& p, std::int64_t strip_count)
      : args(p.args),
        strips(strip_count),
        k_strip(kStrip * padded(p.args.qk_dim)),
        v_strip(kStrip * padded(p.args.v_dim)),
        k(p.args.batch * p.args.kv_heads * strips * k_strip),
        v(p.args.batch * p.args.kv_heads * strips * v_strip) {}

  void pack(ThreadPool& pool, const AttentionProblem& p) {
    pool.for_range(args.batch * args.kv_heads * strips, 8, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t head = i / strips % args.kv_heads, b = i / strips / args.kv_heads;
        const auto rows = [&](const void* x, std::int64_t strip, std::int64_t width) {
          return strip_rows(x, b, strip * kStrip, args.kv_length, head, args.kv_heads, width);
        };
        prefetch_rows(rows(p.k, i % strips + kAhead, args.qk_dim));
        prefetch_rows(rows(p.v, i % strips + kAhead, args.v_dim));
        pack_strip(rows(p.k, i % strips, args.qk_dim), StripOrder::left_positions, k.data() + i * k_strip);
        pack_strip(rows(p.v, i % strips, args.v_dim), StripOrder::left_dims, v.data() + i * v_strip);
      }
    });
  }

  const AttentionSpec& args;
  std::int64_t strips, k_strip, v_strip;
  Scratch<Word> k, v;
};

// One strip of queries.
struct QueryStrip {
  const Word* q;      // right_positions
  float* sum_v;       // out^T: blocks [v/32]
  float* shift;       // [32]: what a query's scores are taken relative to, in powers of two
  float* sum;         // [32]
  float* top;         // [32]: the largest score, where it is asked for
  bool fresh = true;  // nothing in sum_v yet
  bool seen = false;  // has a shift
};

// Strip `query` of the task against strip `key`.
struct Item {
  std::int32_t query;
  std::int32_t key;
  bool masked;
};

// Items of one query strip whose exponentials are made and whose values are to be added.
struct Group {
  std::int64_t query = 0;
  std::int64_t key[kGroup];
  std::int64_t count = 0;
  std::int64_t buffer = 0;    // which of the two holds the exponentials
  std::int64_t next_dim = 0;  // blocks of 32 dims before it are added
  bool add = false;           // to what is in sum_v
};

class ForwardTask {
 public:
  ForwardTask(const AttentionProblem& p, const Masks& masks, PackedKeys& keys)
      : p_(p),
        masks_(masks),
        keys_(keys),
        qk_(padded(p.args.qk_dim)),
        vw_(padded(p.args.v_dim)),
        scale_(p.args.scale * kLog2E),
        words_(kBlockStrips * kStrip * qk_ + 2 * kGroup * 2 * kTileWords),
        floats_(kBlockStrips * kStrip * (vw_ + 3) + 2 * kBlockFloats) {}

  void run(std::int64_t batch, std::int64_t head, std::int64_t first_strip) {
    batch_ = batch;
    first_ = first_strip;
    count_ = std::min(kBlockStrips, masks_.q_strips() - first_strip);
    const std::int64_t kv_head = head / (p_.args.heads / p_.args.kv_heads);
    head_ = (batch * p_.args.kv_heads + kv_head) * masks_.kv_strips();
    begin(head);
    list_items();
    attend();
    for (std::int64_t s = 0; s < count_; ++s) finish(s, head);
  }

 private:
  Word* weights(std::int64_t buffer, std::int64_t at) {
    return words_.data() + kBlockStrips * kStrip * qk_ + (buffer * kGroup + at) * 2 * kTileWords;
  }
  float* scores(std::size_t item) {
    return floats_.data() + kBlockStrips * kStrip * (vw_ + 3) +
           static_cast<std::int64_t>(item % 2) * kBlockFloats;
  }

  HeadRows strip_of(const void* x, std::int64_t s, std::int64_t head, std::int64_t width) const {
    return strip_rows(x, batch_, (first_ + s) * kStrip, p_.args.q_length, head, p_.args.heads, width);
  }

  void begin(std::int64_t head) {
    const AttentionSpec& a = p_.args;
    float* at = floats_.data();
    for (std::int64_t s = 0; s < count_; ++s) prefetch_rows(strip_of(p_.q, s, head, a.qk_dim));
    for (std::int64_t s = 0; s < count_; ++s) {
      prefetch_rows<true>(strip_of(p_.out, s, head, a.v_dim));
      Word* q = words_.data() + s * kStrip * qk_;
      pack_strip(strip_of(p_.q, s, head, a.qk_dim), StripOrder::right_positions, q);
      strips_[s] = {q, at, at + kStrip * vw_, at + kStrip * (vw_ + 1), at + kStrip * (vw_ + 2)};
      std::fill(strips_[s].shift, strips_[s].shift + kStrip, kLowest);
      std::fill(strips_[s].sum, strips_[s].sum + kStrip, 0.0f);
      std::fill(strips_[s].top, strips_[s].top + kStrip, -kInfinity);
      at += kStrip * (vw_ + 3);
    }
  }

  void list_items() {
    items_.clear();
    for (std::int64_t block = 0; block < masks_.kv_strips(); block += kBlockStrips) {
      for (std::int64_t s = 0; s < count_; ++s) {
        for (std::int64_t j = block; j < std::min(block + kBlockStrips, masks_.kv_strips()); ++j) {
          const TileMask mask = masks_.of(batch_, first_ + s, j);
          if (mask == TileMask::none) continue;
          items_.push_back(
              {static_cast<std::int32_t>(s), static_cast<std::int32_t>(j), mask == TileMask::some});
        }
      }
    }
  }

  void attend() {
    group_ = closed_ = {};
    steps_.clear();
    add_scores(0);
    run_steps();
    for (std::size_t i = 0; i < items_.size(); ++i) {
      const Item& item = items_[i];
      QueryStrip& strip = strips_[item.query];
      if (group_.count == kGroup || (group_.count > 0 && group_.query != item.query)) close_group();
      steps_.clear();
      add_scores(i + 1);
      const bool adds_values = add_values((vw_ / 32 + kGroup - 1) / kGroup);
      prefetch(item);
      if (item.masked) masks_.apply(batch_, first_ + item.query, item.key, scores(i));
      if (p_.top != nullptr) note_top(strip, scores(i));
      if (!strip.seen) rescale(strip, scores(i));
      if (!exponentials(strip, scores(i), weights(group_.buffer, group_.count))) {
        flush();
        rescale(strip, scores(i));
        exponentials(strip, scores(i), weights(group_.buffer, 0));
      }
      if (!adds_values) steps_.close();  // the next item's scores
      group_.query = item.query;
      group_.key[group_.count++] = item.key;
    }
    flush();
  }

  void add_scores(std::size_t item) {
    if (item >= items_.size()) return;
    steps_.add_dims(keys_.k.data() + (head_ + items_[item].key) * keys_.k_strip,
                    strips_[items_[item].query].q, qk_, scores(item));
  }

  // Brings a part of the strip of keys and values one block ahead to L2; the items of a block bring it whole.
  SWITCHYARD_TILED void prefetch(const Item& item) {
    const std::int64_t key = item.key + kBlockStrips;
    if (key >= masks_.kv_strips()) return;
    prefetch_part(keys_.k.data() + (head_ + key) * keys_.k_strip, keys_.k_strip, item.query, count_);
    prefetch_part(keys_.v.data() + (head_ + key) * keys_.v_strip, keys_.v_strip, item.query, count_);
  }

  // Up to `blocks` products of 32 dims of the closed group. False: there were none.
  bool add_values(std::int64_t blocks) {
    const Group& g = closed_;
    const std::int64_t before = g.next_dim;
    for (; blocks > 0 && g.count > 0 && g.next_dim < vw_ / 32; --blocks, ++closed_.next_dim) {
      float* sum = strips_[g.query].sum_v + g.next_dim * kBlockFloats;
      for (std::int64_t i = 0; i < g.count; ++i) {
        const Word* v = keys_.v.data() + (head_ + g.key[i]) * keys_.v_strip + g.next_dim * 2 * kTileWords;
        steps_.add_step(v, weights(g.buffer, i), sum, g.add, i);
      }
    }
    return g.next_dim > before;
  }

  SWITCHYARD_TILED void run_steps() {
    steps_.run(0, 1);
    steps_.close();
    steps_.clear();
  }

  // Hands the open group to add_values, after the rest of the one before.
  void close_group() {
    steps_.clear();
    add_values(vw_);
    run_steps();
    closed_ = group_;
    closed_.add = !strips_[group_.query].fresh;
    strips_[group_.query].fresh = false;
    group_ = {};
    group_.buffer = 1 - closed_.buffer;
  }

  // Adds all values that are to be added.
  void flush() {
    if (group_.count > 0) close_group();
    steps_.clear();
    add_values(vw_);
    run_steps();
  }

  SWITCHYARD_TILED static __m512 largest(const float* block, std::int64_t half) {
    __m512 top = _mm512_set1_ps(-kInfinity);
    for (std::int64_t r = 0; r < 32; ++r)
      top = _mm512_max_ps(top, _mm512_load_ps(block + (r / 16 * 2 + half) * kTileFloats + r % 16 * 16));
    return top;
  }

  SWITCHYARD_TILED static void note_top(QueryStrip& strip, const float* block) {
    for (std::int64_t half = 0; half < 2; ++half) {
      float* const top = strip.top + 16 * half;
      _mm512_store_ps(top, _mm512_max_ps(_mm512_load_ps(top), largest(block, half)));
    }
  }

  // Brings the sums of a strip to the maxima that include these scores.
  SWITCHYARD_TILED void rescale(QueryStrip& strip, const float* block) const {
    for (std::int64_t half = 0; half < 2; ++half) {
      const __m512 top = largest(block, half);
      const __m512 before = _mm512_load_ps(strip.shift + 16 * half);
      const __m512 now = _mm512_max_ps(_mm512_mul_ps(top, _mm512_set1_ps(scale_)), before);
      const __m512 factor = exp2_vector(_mm512_sub_ps(before, now));
      _mm512_store_ps(strip.shift + 16 * half, now);
      _mm512_store_ps(strip.sum + 16 * half, _mm512_mul_ps(_mm512_load_ps(strip.sum + 16 * half), factor));
      for (std::int64_t t = half; t < vw_ / 8 && !strip.fresh; t += 2) {
        for (float* x = strip.sum_v + t * kTileFloats; x < strip.sum_v + (t + 1) * kTileFloats; x += 16) {
          _mm512_store_ps(x, _mm512_mul_ps(_mm512_load_ps(x), factor));
        }
      }
    }
    strip.seen = true;
  }

  // Stores exp(score - shift) of an item in pairs of keys and adds them to the sums, running steps_
  // meanwhile. False, with the sums as they were, when a sum is too large.
  SWITCHYARD_TILED bool exponentials(QueryStrip& strip, const float* block, Word* out) {
    const __m512 scale = _mm512_set1_ps(scale_);
    __m512 sum[2];
    unsigned above = 0;
    for (std::size_t half = 0; half < 2; ++half) {
      const __m512 shift = _mm512_load_ps(strip.shift + 16 * half);
      __m512 even_sum = _mm512_setzero_ps(), odd_sum = _mm512_setzero_ps();
      Word* to = out + half * kTileWords;
      for (std::size_t part = 0; part < 4; ++part) {
        steps_.run(half * 4 + part, 8);
        const float* x = block + (part / 2 * 2 + half) * kTileFloats + part % 2 * 128;
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r, x += 32, to += 32) {
          const __m512 even = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(x), scale, shift));
          const __m512 odd = exp2_vector(_mm512_fmsub_ps(_mm512_load_ps(x + 16), scale, shift));
          even_sum = _mm512_add_ps(even_sum, even);
          odd_sum = _mm512_add_ps(odd_sum, odd);
          _mm512_store_si512(to, paired(rounded(even), rounded(odd)));
        }
      }
      sum[half] = _mm512_add_ps(even_sum, odd_sum);
      above |= _mm512_cmp_ps_mask(sum[half], _mm512_set1_ps(kLimit), _CMP_GT_OQ);
    }
    if (above != 0) return false;
    _mm512_store_ps(strip.sum, _mm512_add_ps(_mm512_load_ps(strip.sum), sum[0]));
    _mm512_store_ps(strip.sum + 16, _mm512_add_ps(_mm512_load_ps(strip.sum + 16), sum[1]));
    return true;
  }

  void finish(std::int64_t s, std::int64_t head) {
    const AttentionSpec& a = p_.args;
    QueryStrip& strip = strips_[s];
    const std::int64_t query = (first_ + s) * kStrip;
    const HeadRows out = strip_of(p_.out, s, head, a.v_dim);
    if (strip.fresh) std::fill(strip.sum_v, strip.sum_v + kStrip * vw_, 0.0f);
    alignas(64) float factor[kStrip];
    for (std::int64_t i = 0; i < kStrip; ++i) {
      const float sum = strip.sum[i];
      factor[i] = sum == 0 ? 0.0f : 1.0f / sum;
      if (i >= out.rows) continue;
      p_.lse[(batch_ * a.heads + head) * a.q_length + query + i] =
          sum == 0
              ? -kInfinity
              : static_cast<float>(0.6931471805599453 * static_cast<double>(strip.shift[i])) + std::log(sum);
      if (p_.top != nullptr)
        p_.top[(batch_ * a.heads + head) * a.q_length + query + i] = strip.top[i] * a.scale;
    }
    store_transposed(strip.sum_v, factor, out);
  }

  const AttentionProblem& p_;
  const Masks& masks_;
  PackedKeys& keys_;
  std::int64_t qk_, vw_;
  float scale_;
  Scratch<Word> words_;    // queries of the strips; then of two groups, exponentials in pairs of keys
  Scratch<float> floats_;  // per strip out^T, shift, sum and top; then two blocks of scores
  std::int64_t batch_ = 0, first_ = 0, count_ = 0, head_ = 0;
  QueryStrip strips_[kBlockStrips];
  std::vector<Item> items_;
  TileSteps steps_;
  Group group_, closed_;
};

}  // namespace
}  // namespace attention_tiles

std::size_t attention_workspace(const AttentionArgs& args) {
  const AttentionSpec a = attention_spec(args);
  const std::int64_t positions = a.batch * a.kv_heads * attention_tiles::strips_of(a.kv_length) * 32;
  return static_cast<std::size_t>(positions *
                                  (attention_tiles::padded(a.qk_dim) + attention_tiles::padded(a.v_dim))) *
         sizeof(Word);
}

void attention(ThreadPool& pool, const AttentionProblem& p) {
  using namespace attention_tiles;
  const Masks masks(p.args);
  PackedKeys keys(p, masks.kv_strips());
  keys.pack(pool, p);
  const std::int64_t blocks = (masks.q_strips() + kBlockStrips - 1) / kBlockStrips;
  pool.for_range(p.args.batch * p.args.heads * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
    const TileSession session;
    ForwardTask task(p, masks, keys);
    for (std::int64_t i = begin; i < end; ++i) {
      // The last queries, which see most keys, first: the threads end together.
      task.run(i / blocks / p.args.heads, i / blocks % p.args.heads,
               (blocks - 1 - i % blocks) * kBlockStrips);
    }
  });
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES
#endif  // x86-64
