// Attention's forward pass for AVX2 and AVX-512, in fp32. A panel of queries (attention_product-inl.h) is a
// lane each, all the way:
//
// 1. Scores are made transposed, [key][query]: the maximum, sum and correction of a query stay in its lane.
// 2. So are the outputs, [v][query]: the correction is a product of vectors as the sums are loaded.
// 3. A panel's queries, scores and outputs stay in the first cache, in the order in which the products read
//    them; keys and values pass through by broadcast, copied to fp32 once for several tiles of queries.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <cmath>

#include "hwy/highway.h"
#include "kernels/attention/cpu/attention_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"
#include "kernels/cpu/thread_scratch.h"

#ifndef SWITCHYARD_ATTENTION_SCRATCH_
#define SWITCHYARD_ATTENTION_SCRATCH_
namespace switchyard::cpu {
inline ThreadScratch& attention_scratch() {
  thread_local ThreadScratch scratch;
  return scratch;
}
}  // namespace switchyard::cpu
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

// The state of a tile of queries while its keys go by. Scores, and so maxima, are in units of log 2.
struct QueryTile {
  std::int64_t begin;  // its first query
  float* q;            // [query panel][qk][kPanel], scaled
  float* out;          // [query panel][v, in units of rows][kPanel]
  float* maximum;      // [kTile]
  float* sum;
};

// A panel's scores [keys][kPanel] become 2^(score - maximum); updates each query's maximum and sum and gives
// in `correction` what its earlier sums must be multiplied by.
void softmax_step(float* scores, std::int64_t keys, float* maximum, float* sum, float* correction) {
  const D d;
  for (std::int64_t i = 0; i < kPanel; i += kStep, scores += kStep) {
    const V before = hn::Load(d, maximum + i);
    V now = before;
    for (std::int64_t j = 0; j < keys; ++j) now = hn::Max(now, hn::Load(d, scores + j * kPanel));
    // While a query has seen no key its maximum is -infinity, and -infinity - -infinity would be NaN.
    const V shift = hn::IfThenElse(hn::Eq(now, hn::Set(d, -kInfinity)), hn::Zero(d), now);
    const V factor = lanes::exp2_keeping_nan(hn::Sub(before, shift));
    V total = hn::Mul(hn::Load(d, sum + i), factor);
    for (std::int64_t j = 0; j < keys; ++j) {
      const V e = lanes::exp2_keeping_nan(hn::Sub(hn::Load(d, scores + j * kPanel), shift));
      hn::Store(e, d, scores + j * kPanel);
      total = hn::Add(total, e);
    }
    hn::Store(now, d, maximum + i);
    hn::Store(total, d, sum + i);
    hn::Store(factor, d, correction + i);
  }
}

}  // namespace

void attention_tiles(const AttentionProblem& p, std::int64_t batch, std::int64_t head,
                     std::int64_t tile_begin, std::int64_t tile_end) {
  const AttentionSpec& a = p.args;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads), tiles = tile_end - tile_begin;
  const std::int64_t k_stride = left_stride(a.qk_dim), v_stride = left_stride(a.v_dim);
  const std::int64_t v_rows = in_units(a.v_dim, kRowUnit);
  const std::int64_t per_tile = kTile * (a.qk_dim + v_rows + 2);
  const std::int64_t shared = kTile * (k_stride + v_stride + kPanel) + kPanel * (v_rows + 1);
  Arrays arrays(cpu::attention_scratch().at_least<float>(tiles * per_tile + shared));
  float *k = arrays.take(kTile * k_stride), *v = arrays.take(kTile * v_stride);
  float *scores = arrays.take(kTile * kPanel), *correction = arrays.take(kPanel);
  float* const row_space = arrays.take(kPanel * v_rows);
  float* const of_tiles = arrays.take(tiles * per_tile);
  const auto query_tile_at = [&](std::int64_t t) {
    Arrays own(of_tiles + (t - tile_begin) * per_tile);
    return QueryTile{t * kTile, own.take(kTile * a.qk_dim), own.take(kTile * v_rows), own.take(kTile),
                     own.take(kTile)};
  };
  for (std::int64_t t = tile_begin; t < tile_end; ++t) {
    const QueryTile tile = query_tile_at(t);
    load_column_panels(query_tile(a, p.q, a.qk_dim, batch, head, tile.begin), a.scale * lanes::kLog2E,
                       tile.q);
    std::fill(tile.out, tile.out + kTile * v_rows, 0.0f);
    std::fill(tile.maximum, tile.maximum + kTile, -kInfinity);
    std::fill(tile.sum, tile.sum + kTile, 0.0f);
  }
  for (std::int64_t kv_tile = 0; kv_tile < p.kv_tile_count(); ++kv_tile) {
    const std::int64_t key = kv_tile * kTile, keys = std::min(kTile, a.kv_length - key);
    bool loaded = false;
    for (std::int64_t t = tile_begin; t < tile_end; ++t) {
      const TileMask mask = p.mask(batch, t, kv_tile);
      if (mask == TileMask::none) continue;
      if (!loaded) {
        load_rows(key_tile(a, p.k, a.qk_dim, batch, kv_head, key), k_stride, k);
        load_rows(key_tile(a, p.v, a.v_dim, batch, kv_head, key), v_stride, v);
        loaded = true;
      }
      const QueryTile tile = query_tile_at(t);
      for (std::int64_t i = 0; i < std::min(kTile, a.q_length - tile.begin); i += kPanel) {
        product<Order::rows, Start::zero>(in_units(keys, kRowUnit), a.qk_dim, {k, k_stride},
                                          {tile.q + i * a.qk_dim, kPanel}, {scores, kPanel});
        if (mask == TileMask::some) apply_mask(a, batch, tile.begin + i, key, keys, {scores, kPanel});
        softmax_step(scores, keys, tile.maximum + i, tile.sum + i, correction);
        product<Order::columns, Start::scaled_sum>(v_rows, keys, {v, v_stride}, {scores, kPanel},
                                                   {tile.out + i * v_rows, kPanel}, correction);
      }
    }
  }
  for (std::int64_t t = tile_begin; t < tile_end; ++t) {
    const QueryTile tile = query_tile_at(t);
    const HeadTile out = query_tile(a, p.out, a.v_dim, batch, head, tile.begin);
    // A query that saw a key has a sum of at least 1 (or NaN, which must show).
    for (std::int64_t i = 0; i < out.rows; ++i) {
      float& lse = p.lse[(batch * a.heads + head) * a.q_length + tile.begin + i];
      const float sum = tile.sum[i];
      lse = sum == 0 ? -kInfinity : tile.maximum[i] * lanes::kLn2 + std::log(sum);
      if (p.top != nullptr)
        p.top[(batch * a.heads + head) * a.q_length + tile.begin + i] = tile.maximum[i] * lanes::kLn2;
    }
    for (std::int64_t i = 0; i < kTile; ++i) tile.sum[i] = tile.sum[i] == 0 ? 0.0f : 1.0f / tile.sum[i];
    store_columns(tile.out, v_rows, tile.sum, out, row_space);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void attention_tiles_avx512(const AttentionProblem& p, std::int64_t batch, std::int64_t head,
                            std::int64_t tile_begin, std::int64_t tile_end) {
  N_AVX3::attention_tiles(p, batch, head, tile_begin, tile_end);
}
void attention_tiles_avx2(const AttentionProblem& p, std::int64_t batch, std::int64_t head,
                          std::int64_t tile_begin, std::int64_t tile_end) {
  N_AVX2::attention_tiles(p, batch, head, tile_begin, tile_end);
}

}  // namespace switchyard::cpu
#endif
