// Attention's backward pass for AVX2 and AVX-512, in fp32. As in the forward pass (attention_simd.cc), a
// panel of queries is a lane each while scores, their gradients and dq are made, all transposed; dk and dv
// then add up over the tile's queries. Per head there are fp32 copies and sums of O(S) and O(T)
// rows, never S x T.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_backward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "core/tensor.h"
#include "hwy/highway.h"
#include "kernels/attention/cpu/attention_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

// Tiles of keys that a tile of queries, with its gradients, is read for at a time.
constexpr std::int64_t kKeyTiles = 2;

// fp32 copies of one query head's tiles, and its dq.
struct QueryTiles {
  explicit QueryTiles(const AttentionProblem& p)
      : problem(p),
        qk(p.args.qk_dim),
        v(p.args.v_dim),
        dq_rows(in_units(qk, kRowUnit)),
        per_tile(kTile * (qk + in_units(qk, kPanel) + dq_rows + v + in_units(v, kPanel) + 2)),
        buffer(static_cast<std::size_t>(per_tile * p.q_tile_count()) * sizeof(float)) {}

  struct Tile {
    float* q_t;     // [query panel][qk][kPanel], scaled
    float* q;       // [qk panel][kTile][kPanel], scaled
    float* dq;      // [query panel][qk, in units of rows][kPanel]
    float* dout_t;  // [query panel][v][kPanel]
    float* dout;    // [v panel][kTile][kPanel]
    float* lse;     // [kTile]
    float* delta;   // [kTile]: dout . out
  };

  Tile at(std::int64_t t) const {
    Arrays own(reinterpret_cast<float*>(buffer.data()) + t * per_tile);
    return {own.take(kTile * qk), own.take(kTile * in_units(qk, kPanel)), own.take(kTile * dq_rows),
            own.take(kTile * v),  own.take(kTile * in_units(v, kPanel)),  own.take(kTile),
            own.take(kTile)};
  }

  void load(std::int64_t batch, std::int64_t head) {
    const AttentionSpec& a = problem.args;
    for (std::int64_t t = 0; t < problem.q_tile_count(); ++t) {
      const std::int64_t begin = t * kTile;
      const Tile tile = at(t);
      const HeadTile q = query_tile(a, problem.q, qk, batch, head, begin);
      load_column_panels(q, a.scale, tile.q_t);
      load_row_panels(q, a.scale, tile.q);
      std::fill(tile.dq, tile.dq + kTile * dq_rows, 0.0f);
      const HeadTile dout = query_tile(a, problem.dout, v, batch, head, begin);
      // `out` is needed for delta only: it passes through dout's other place.
      load_column_panels(query_tile(a, problem.out, v, batch, head, begin), 1, tile.dout);
      load_column_panels(dout, 1, tile.dout_t);
      sum_of_products(tile.dout_t, tile.dout, tile.delta);
      load_row_panels(dout, 1, tile.dout);
      for (std::int64_t i = 0; i < kTile; ++i) {
        // A query without keys has lse -infinity; all its scores are -infinity too, and
        // e^(-infinity - 0) is 0.
        const float lse = i < q.rows ? problem.lse[(batch * a.heads + head) * a.q_length + begin + i] : 0.0f;
        tile.lse[i] = lse == -kInfinity ? 0.0f : lse;
      }
    }
  }

  void store_dq(std::int64_t batch, std::int64_t head, float* row_space) const {
    const AttentionSpec& a = problem.args;
    float scale[kTile];
    std::fill(scale, scale + kTile, a.scale);
    for (std::int64_t t = 0; t < problem.q_tile_count(); ++t) {
      store_columns(at(t).dq, dq_rows, scale, query_tile(a, problem.dq, qk, batch, head, t * kTile),
                    row_space);
    }
  }

  const AttentionProblem& problem;
  const std::int64_t qk, v, dq_rows, per_tile;

 private:
  // sum[i] = sum over d of x(d, i) y(d, i), of panels [i / kPanel][v][i % kPanel].
  void sum_of_products(const float* x, const float* y, float* sum) const {
    for (std::int64_t i = 0; i < kTile; i += kStep) {
      const std::int64_t panel = i / kPanel * kPanel * v + i % kPanel;
      V total = hn::Zero(D());
      for (std::int64_t d = 0; d < v; ++d) {
        const std::int64_t at = panel + d * kPanel;
        total = hn::MulAdd(lanes::load(x + at), lanes::load(y + at), total);
      }
      lanes::store(total, sum + i);
    }
  }

  mutable Buffer buffer;
};

// fp32 copies of one key/value head, and its dk and dv. Rows of the copies are left operands.
struct KeyTiles {
  explicit KeyTiles(const AttentionProblem& p)
      : problem(p),
        qk(p.args.qk_dim),
        v(p.args.v_dim),
        k_stride(left_stride(qk)),
        v_stride(left_stride(v)),
        dk_stride(in_units(qk, kPanel)),
        dv_stride(in_units(v, kPanel)),
        per_tile(kTile * (k_stride + v_stride + dk_stride + dv_stride)),
        buffer(static_cast<std::size_t>(per_tile * p.kv_tile_count()) * sizeof(float)) {}

  struct Tile {
    float *k, *v, *dk, *dv;  // [kTile][stride]
  };

  Tile at(std::int64_t t) const {
    Arrays own(reinterpret_cast<float*>(buffer.data()) + t * per_tile);
    return {own.take(kTile * k_stride), own.take(kTile * v_stride), own.take(kTile * dk_stride),
            own.take(kTile * dv_stride)};
  }

  void load(std::int64_t batch, std::int64_t kv_head) {
    for (std::int64_t t = 0; t < problem.kv_tile_count(); ++t) {
      const Tile tile = at(t);
      load_rows(key_tile(problem.args, problem.k, qk, batch, kv_head, t * kTile), k_stride, tile.k);
      load_rows(key_tile(problem.args, problem.v, v, batch, kv_head, t * kTile), v_stride, tile.v);
      std::fill(tile.dk, tile.dk + kTile * dk_stride, 0.0f);
      std::fill(tile.dv, tile.dv + kTile * dv_stride, 0.0f);
    }
  }

  void store(std::int64_t batch, std::int64_t kv_head) const {
    for (std::int64_t t = 0; t < problem.kv_tile_count(); ++t) {
      const Tile tile = at(t);
      store_rows(tile.dk, dk_stride, key_tile(problem.args, problem.dk, qk, batch, kv_head, t * kTile));
      store_rows(tile.dv, dv_stride, key_tile(problem.args, problem.dv, v, batch, kv_head, t * kTile));
    }
  }

  const AttentionProblem& problem;
  const std::int64_t qk, v, k_stride, v_stride, dk_stride, dv_stride, per_tile;

 private:
  mutable Buffer buffer;
};

// A panel's scores [keys][query] become p = e^(score - lse), dp becomes ds = p (dp - delta).
void gradient_step(float* scores, float* dp, std::int64_t keys, const float* lse, const float* delta) {
  const D d;
  const V lse_left = hn::Load(d, lse), lse_right = hn::Load(d, lse + kStep);
  const V delta_left = hn::Load(d, delta), delta_right = hn::Load(d, delta + kStep);
  const auto step = [&](float* score, float* gradient, V of_lse, V of_delta) HWY_ATTR {
    const V p = lanes::exp_of_difference(hn::Load(d, score), of_lse);
    hn::Store(p, d, score);
    hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, gradient), of_delta)), d, gradient);
  };
  for (std::int64_t j = 0; j < keys; ++j, scores += kTile, dp += kTile) {
    step(scores, dp, lse_left, delta_left);
    step(scores + kStep, dp + kStep, lse_right, delta_right);
  }
}

// Adds what a tile of queries and one of keys give to dq, dk and dv. scores
// and dp: [kTile keys][kTile queries].
void add_gradients(const AttentionProblem& p, std::int64_t batch, TileMask mask, std::int64_t q_tile,
                   const QueryTiles& queries, std::int64_t kv_tile, const KeyTiles& all_keys, float* scores,
                   float* dp) {
  const AttentionSpec& a = p.args;
  const std::int64_t query = q_tile * kTile, query_count = std::min(kTile, a.q_length - query);
  const std::int64_t key = kv_tile * kTile, keys = std::min(kTile, a.kv_length - key);
  const std::int64_t key_rows = in_units(keys, kRowUnit);
  const QueryTiles::Tile of_query = queries.at(q_tile);
  const KeyTiles::Tile of_key = all_keys.at(kv_tile);
  for (std::int64_t i = 0; i < query_count; i += kPanel) {
    const Panel<float> score{scores + i, kTile}, gradient{dp + i, kTile};
    product<Order::rows, Start::zero>(key_rows, a.qk_dim, {of_key.k, all_keys.k_stride},
                                      {of_query.q_t + i * a.qk_dim, kPanel}, score);
    if (mask == TileMask::some) apply_mask(a, batch, query + i, key, keys, score);
    product<Order::rows, Start::zero>(key_rows, a.v_dim, {of_key.v, all_keys.v_stride},
                                      {of_query.dout_t + i * a.v_dim, kPanel}, gradient);
    gradient_step(score.x, gradient.x, keys, of_query.lse + i, of_query.delta + i);
    product<Order::columns, Start::sum>(queries.dq_rows, keys, {of_key.k, all_keys.k_stride},
                                        {gradient.x, kTile}, {of_query.dq + i * queries.dq_rows, kPanel});
  }
  for (std::int64_t d = 0; d < a.v_dim; d += kPanel) {
    product<Order::rows, Start::sum>(key_rows, query_count, {scores, kTile},
                                     {of_query.dout + d * kTile, kPanel},
                                     {of_key.dv + d, all_keys.dv_stride});
  }
  for (std::int64_t d = 0; d < a.qk_dim; d += kPanel) {
    product<Order::rows, Start::sum>(key_rows, query_count, {dp, kTile}, {of_query.q + d * kTile, kPanel},
                                     {of_key.dk + d, all_keys.dk_stride});
  }
}

}  // namespace

void attention_backward_head(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  const std::int64_t group = p.args.heads / p.args.kv_heads;
  QueryTiles queries(p);
  KeyTiles keys(p);
  Buffer buffer(static_cast<std::size_t>(2 * kTile * kTile + kPanel * queries.dq_rows) * sizeof(float));
  Arrays arrays(reinterpret_cast<float*>(buffer.data()));
  float *scores = arrays.take(kTile * kTile), *dp = arrays.take(kTile * kTile);
  float* const row_space = arrays.take(kPanel * queries.dq_rows);
  keys.load(batch, kv_head);
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    queries.load(batch, head);
    for (std::int64_t begin = 0; begin < p.kv_tile_count(); begin += kKeyTiles) {
      for (std::int64_t i = 0; i < p.q_tile_count(); ++i) {
        for (std::int64_t t = begin; t < std::min(begin + kKeyTiles, p.kv_tile_count()); ++t) {
          const TileMask mask = p.mask(batch, i, t);
          if (mask != TileMask::none) add_gradients(p, batch, mask, i, queries, t, keys, scores, dp);
        }
      }
    }
    queries.store_dq(batch, head, row_space);
  }
  keys.store(batch, kv_head);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void attention_backward_head_avx512(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  N_AVX3::attention_backward_head(p, batch, kv_head);
}
void attention_backward_head_avx2(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  N_AVX2::attention_backward_head(p, batch, kv_head);
}

}  // namespace switchyard::cpu
#endif
