// Attention tiles for AVX2 and AVX-512, in fp32.
//
// 1. Scores are made transposed, [key][query]: the maximum, sum and correction of a query stay in its lane,
// and only the
//    queries need a transposed copy, once per tile of queries.
// 2. Every tile buffer has kAttentionTile rows and a width padded with zeros to kPad columns, so the product
// has no
//    tails. Its left operand is read by broadcast and may therefore be strided either way.
// 3. The backward pass keeps per head fp32 copies and sums of O(S) and O(T) rows, never S x T.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/tensor.h"
#include "hwy/highway.h"
#include "kernels/attention_problem.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);
constexpr std::int64_t kTile = kAttentionTile;
constexpr std::int64_t kPad = 16;
constexpr std::int64_t kRows = 4;                               // register block: 4 rows by
constexpr std::int64_t kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;  // 4 (AVX2: 2) vectors
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t padded(std::int64_t width) {
  return (width + kPad - 1) / kPad * kPad;
}

// ---- Product of tiles
// ----------------------------------------------------------------------------------------------

// a(i, l) = x[i * row + l * depth].
struct Left {
  const float* x;
  std::int64_t row;
  std::int64_t depth;
};

template <std::int64_t vectors>
HWY_INLINE void product_block(Left a, const float* HWY_RESTRICT b, std::int64_t ldb, float* HWY_RESTRICT c,
                              std::int64_t ldc, std::int64_t depth, bool add) {
  const D d;
  V sum[kRows][vectors];
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < vectors; ++j)
      sum[i][j] = add ? hn::LoadU(d, c + i * ldc + j * kStep) : hn::Zero(d);
  }
  for (std::int64_t l = 0; l < depth; ++l, b += ldb, a.x += a.depth) {
    V right[vectors];
    for (std::int64_t j = 0; j < vectors; ++j) right[j] = hn::LoadU(d, b + j * kStep);
    for (std::int64_t i = 0; i < kRows; ++i) {
      const V left = hn::Set(d, a.x[i * a.row]);
      for (std::int64_t j = 0; j < vectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
  }
  for (std::int64_t i = 0; i < kRows; ++i) {
    for (std::int64_t j = 0; j < vectors; ++j) hn::StoreU(sum[i][j], d, c + i * ldc + j * kStep);
  }
}

// c [rows, columns] = a [rows, depth] . b [depth, columns], plus c when `add`. Works on whole blocks of kRows
// rows, so rows past the last are written too; columns is a multiple of kPad.
void product(std::int64_t rows, std::int64_t columns, std::int64_t depth, Left a, const float* b,
             std::int64_t ldb, float* c, std::int64_t ldc, bool add) {
  for (std::int64_t i = 0; i < rows; i += kRows) {
    const Left block{a.x + i * a.row, a.row, a.depth};
    std::int64_t j = 0;
    for (; j + kVectors * kStep <= columns; j += kVectors * kStep) {
      product_block<kVectors>(block, b + j, ldb, c + i * ldc + j, ldc, depth, add);
    }
    for (; j < columns; j += kStep) product_block<1>(block, b + j, ldb, c + i * ldc + j, ldc, depth, add);
  }
}

// ---- Loading and storing tiles
// -------------------------------------------------------------------------------------

// A tile of vectors of one head: element (i, d) at x[i * stride + d], i < rows, d < width.
struct Source {
  const void* x;
  DType dtype;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t width;

  std::int64_t offset(std::int64_t i) const { return i * stride; }
};

// The tile from position `begin` of a tensor [B, length, heads, width].
Source source_of(const void* x, DType dtype, std::int64_t batch, std::int64_t begin, std::int64_t length,
                 std::int64_t head, std::int64_t heads, std::int64_t width) {
  const std::int64_t at = ((batch * length + begin) * heads + head) * width;
  return {static_cast<const std::byte*>(x) + at * static_cast<std::int64_t>(size_of(dtype)), dtype,
          heads * width, std::min(kTile, length - begin), width};
}

template <typename T>
void load_row(const T* x, std::int64_t width, float scale, float* out) {
  for (std::int64_t d = 0; d < width; ++d) out[d] = static_cast<float>(x[d]) * scale;
  std::fill(out + width, out + padded(width), 0.0f);
}

// out [kTile][padded width] = scale * x, zeros past the end.
void load_tile(const Source& s, float scale, float* out) {
  for (std::int64_t i = 0; i < kTile; ++i, out += padded(s.width)) {
    if (i >= s.rows) {
      std::fill(out, out + padded(s.width), 0.0f);
    } else if (s.dtype == DType::f32) {
      load_row(static_cast<const float*>(s.x) + s.offset(i), s.width, scale, out);
    } else {
      load_row(static_cast<const bfloat16*>(s.x) + s.offset(i), s.width, scale, out);
    }
  }
}

// [kTile][padded width] -> [width][kTile].
void transpose(const float* x, std::int64_t width, float* out) {
  for (std::int64_t d = 0; d < width; ++d) {
    for (std::int64_t i = 0; i < kTile; ++i) out[d * kTile + i] = x[i * padded(width) + d];
  }
}

// Stores scale(i) * x[i][:] to the tile `s` describes.
template <typename Scale>
void store_tile(const float* x, const Source& s, const Scale& scale) {
  for (std::int64_t i = 0; i < s.rows; ++i, x += padded(s.width)) {
    const float factor = scale(i);
    if (s.dtype == DType::f32) {
      auto* out = static_cast<float*>(const_cast<void*>(s.x)) + s.offset(i);
      for (std::int64_t d = 0; d < s.width; ++d) out[d] = x[d] * factor;
    } else {
      auto* out = static_cast<bfloat16*>(const_cast<void*>(s.x)) + s.offset(i);
      for (std::int64_t d = 0; d < s.width; ++d) out[d] = bfloat16(x[d] * factor);
    }
  }
}

// Sets the scores [key][query] that do not exist to -infinity.
void apply_mask(const AttentionProblem& p, std::int64_t batch, std::int64_t query, std::int64_t key,
                std::int64_t keys, float* scores) {
  const std::int64_t queries = std::min(kTile, p.args.q_length - query);
  for (std::int64_t j = 0; j < keys; ++j) {
    for (std::int64_t i = 0; i < queries; ++i) {
      if (!p.allowed(batch, query + i, key + j)) scores[j * kTile + i] = -kInfinity;
    }
  }
}

// Consecutive fp32 arrays in one buffer, 64-byte aligned.
class Scratch {
 public:
  explicit Scratch(std::int64_t floats) : buffer_(static_cast<std::size_t>(floats) * sizeof(float)) {
    next_ = reinterpret_cast<float*>(buffer_.data());
  }
  float* take(std::int64_t floats) {
    float* result = next_;
    next_ += floats;
    return result;
  }

 private:
  Buffer buffer_;
  float* next_;
};

// ---- Forward
// -------------------------------------------------------------------------------------------------------

// Scores [keys][query] become exp(score - maximum); updates each query's maximum and sum and gives in
// `correction` what its earlier sums must be multiplied by.
void softmax_step(float* scores, std::int64_t keys, float* maximum, float* sum, float* correction) {
  const D d;
  for (std::int64_t i = 0; i < kTile; i += kStep) {
    const V before = hn::Load(d, maximum + i);
    V now = before;
    for (std::int64_t j = 0; j < keys; ++j) now = hn::Max(now, hn::Load(d, scores + j * kTile + i));
    // While a query has seen no key its maximum is -infinity, and -infinity - -infinity would be NaN.
    const V shift = hn::IfThenElse(hn::Eq(now, hn::Set(d, -kInfinity)), hn::Zero(d), now);
    const V factor = hn::Exp(d, hn::Sub(before, shift));
    V total = hn::Mul(hn::Load(d, sum + i), factor);
    for (std::int64_t j = 0; j < keys; ++j) {
      const V e = lanes::exp_keeping_nan(hn::Sub(hn::Load(d, scores + j * kTile + i), shift));
      hn::Store(e, d, scores + j * kTile + i);
      total = hn::Add(total, e);
    }
    hn::Store(now, d, maximum + i);
    hn::Store(total, d, sum + i);
    hn::Store(factor, d, correction + i);
  }
}

void scale_rows(float* x, std::int64_t width, const float* factor) {
  for (std::int64_t i = 0; i < kTile; ++i) {
    for (std::int64_t d = 0; d < width; ++d) x[i * width + d] *= factor[i];
  }
}

}  // namespace

void attention_tile(const AttentionProblem& p, std::int64_t batch, std::int64_t head, std::int64_t q_tile) {
  const AttentionSpec& a = p.args;
  const std::int64_t kv_head = head / (a.heads / a.kv_heads), query = q_tile * kTile;
  const std::int64_t qk = padded(a.qk_dim), vw = padded(a.v_dim);
  Scratch scratch(kTile * (3 * qk + 2 * vw + kTile + 3));
  float *q = scratch.take(kTile * qk), *q_t = scratch.take(kTile * qk), *k = scratch.take(kTile * qk);
  float *v = scratch.take(kTile * vw), *sum_v = scratch.take(kTile * vw),
        *scores = scratch.take(kTile * kTile);
  float *maximum = scratch.take(kTile), *sum = scratch.take(kTile), *correction = scratch.take(kTile);
  std::fill(sum_v, sum_v + kTile * vw, 0.0f);
  std::fill(maximum, maximum + kTile, -kInfinity);
  std::fill(sum, sum + kTile, 0.0f);
  load_tile(source_of(p.q, a.dtype, batch, query, a.q_length, head, a.heads, a.qk_dim), a.scale, q);
  transpose(q, a.qk_dim, q_t);
  for (std::int64_t t = 0; t < p.kv_tile_count(); ++t) {
    const TileMask mask = p.mask(batch, q_tile, t);
    if (mask == TileMask::none) continue;
    const std::int64_t key = t * kTile, keys = std::min(kTile, a.kv_length - key);
    load_tile(source_of(p.k, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.qk_dim), 1, k);
    load_tile(source_of(p.v, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.v_dim), 1, v);
    product(keys, kTile, a.qk_dim, {k, qk, 1}, q_t, kTile, scores, kTile, false);
    if (mask == TileMask::some) apply_mask(p, batch, query, key, keys, scores);
    softmax_step(scores, keys, maximum, sum, correction);
    scale_rows(sum_v, vw, correction);
    product(kTile, vw, keys, {scores, 1, kTile}, v, vw, sum_v, vw, true);
  }
  // A query that saw a key has a sum of at least 1 (or NaN, which must show).
  const Source out = source_of(p.out, a.dtype, batch, query, a.q_length, head, a.heads, a.v_dim);
  store_tile(sum_v, out, [&](std::int64_t i) { return sum[i] == 0 ? 0.0f : 1.0f / sum[i]; });
  for (std::int64_t i = 0; i < out.rows; ++i) {
    float& lse = p.lse[(batch * a.heads + head) * a.q_length + query + i];
    lse = sum[i] == 0 ? -kInfinity : maximum[i] + std::log(sum[i]);
  }
}

// ---- Backward
// ------------------------------------------------------------------------------------------------------

namespace {

// fp32 copies of one query head's tiles, and its dq.
struct QueryTiles {
  QueryTiles(const AttentionProblem& p)
      : problem(p),
        qk(padded(p.args.qk_dim)),
        vw(padded(p.args.v_dim)),
        per_tile(kTile * (3 * qk + 2 * vw + 2)),
        scratch(per_tile * p.q_tile_count()),
        base(scratch.take(per_tile * p.q_tile_count())) {}

  float* q(std::int64_t t) const { return base + t * per_tile; }        // scaled, [query][qk]
  float* q_t(std::int64_t t) const { return q(t) + kTile * qk; }        // [qk][query]
  float* dq(std::int64_t t) const { return q(t) + kTile * 2 * qk; }     // [query][qk]
  float* dout(std::int64_t t) const { return q(t) + kTile * 3 * qk; }   // [query][v]
  float* dout_t(std::int64_t t) const { return dout(t) + kTile * vw; }  // [v][query]
  float* lse(std::int64_t t) const { return dout(t) + kTile * 2 * vw; }
  float* delta(std::int64_t t) const { return lse(t) + kTile; }  // dout . out

  void load(std::int64_t batch, std::int64_t head) {
    const AttentionSpec& a = problem.args;
    for (std::int64_t t = 0; t < problem.q_tile_count(); ++t) {
      const std::int64_t begin = t * kTile;
      load_tile(source_of(problem.q, a.dtype, batch, begin, a.q_length, head, a.heads, a.qk_dim), a.scale,
                q(t));
      transpose(q(t), a.qk_dim, q_t(t));
      std::fill(dq(t), dq(t) + kTile * qk, 0.0f);
      const Source g = source_of(problem.dout, a.dtype, batch, begin, a.q_length, head, a.heads, a.v_dim);
      // `out` is needed for delta only: it passes through dout_t's place.
      load_tile(source_of(problem.out, a.dtype, batch, begin, a.q_length, head, a.heads, a.v_dim), 1,
                dout_t(t));
      load_tile(g, 1, dout(t));
      for (std::int64_t i = 0; i < kTile; ++i) {
        float sum = 0;
        for (std::int64_t d = 0; d < vw; ++d) sum += dout(t)[i * vw + d] * dout_t(t)[i * vw + d];
        delta(t)[i] = sum;
        // A query without keys has lse -infinity; all its scores are -infinity too, and exp(-infinity - 0) is
        // 0.
        const float value =
            i < g.rows ? problem.lse[(batch * a.heads + head) * a.q_length + begin + i] : 0.0f;
        lse(t)[i] = value == -kInfinity ? 0.0f : value;
      }
      transpose(dout(t), a.v_dim, dout_t(t));
    }
  }

  void store_dq(std::int64_t batch, std::int64_t head) const {
    const AttentionSpec& a = problem.args;
    for (std::int64_t t = 0; t < problem.q_tile_count(); ++t) {
      store_tile(dq(t), source_of(problem.dq, a.dtype, batch, t * kTile, a.q_length, head, a.heads, a.qk_dim),
                 [&](std::int64_t) { return a.scale; });
    }
  }

  const AttentionProblem& problem;
  std::int64_t qk, vw, per_tile;
  Scratch scratch;
  float* base;
};

// scores [keys][query] become p = exp(score - lse), dp becomes ds = p (dp - delta).
void gradient_step(float* scores, float* dp, std::int64_t keys, const float* lse, const float* delta) {
  const D d;
  for (std::int64_t j = 0; j < keys; ++j, scores += kTile, dp += kTile) {
    for (std::int64_t i = 0; i < kTile; i += kStep) {
      const V p = lanes::exp_keeping_nan(hn::Sub(hn::Load(d, scores + i), hn::Load(d, lse + i)));
      hn::Store(p, d, scores + i);
      hn::Store(hn::Mul(p, hn::Sub(hn::Load(d, dp + i), hn::Load(d, delta + i))), d, dp + i);
    }
  }
}

}  // namespace

void attention_backward_head(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  const AttentionSpec& a = p.args;
  const std::int64_t group = a.heads / a.kv_heads, tiles = p.kv_tile_count();
  QueryTiles queries(p);
  const std::int64_t qk = queries.qk, vw = queries.vw;
  Scratch scratch(kTile * (tiles * 2 * (qk + vw) + 2 * kTile));
  float *k = scratch.take(tiles * kTile * qk), *dk = scratch.take(tiles * kTile * qk);
  float *v = scratch.take(tiles * kTile * vw), *dv = scratch.take(tiles * kTile * vw);
  float *scores = scratch.take(kTile * kTile), *dp = scratch.take(kTile * kTile);
  std::fill(dk, dk + tiles * kTile * qk, 0.0f);
  std::fill(dv, dv + tiles * kTile * vw, 0.0f);
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t key = t * kTile;
    load_tile(source_of(p.k, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.qk_dim), 1,
              k + key * qk);
    load_tile(source_of(p.v, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.v_dim), 1,
              v + key * vw);
  }
  for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    queries.load(batch, head);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t key = t * kTile, keys = std::min(kTile, a.kv_length - key);
      for (std::int64_t i = 0; i < p.q_tile_count(); ++i) {
        const TileMask mask = p.mask(batch, i, t);
        if (mask == TileMask::none) continue;
        product(keys, kTile, a.qk_dim, {k + key * qk, qk, 1}, queries.q_t(i), kTile, scores, kTile, false);
        if (mask == TileMask::some) apply_mask(p, batch, i * kTile, key, keys, scores);
        product(keys, kTile, a.v_dim, {v + key * vw, vw, 1}, queries.dout_t(i), kTile, dp, kTile, false);
        gradient_step(scores, dp, keys, queries.lse(i), queries.delta(i));
        product(keys, vw, kTile, {scores, kTile, 1}, queries.dout(i), vw, dv + key * vw, vw, true);
        product(keys, qk, kTile, {dp, kTile, 1}, queries.q(i), qk, dk + key * qk, qk, true);
        product(kTile, qk, keys, {dp, 1, kTile}, k + key * qk, qk, queries.dq(i), qk, true);
      }
    }
    queries.store_dq(batch, head);
  }
  const auto unscaled = [](std::int64_t) { return 1.0f; };
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t key = t * kTile;
    store_tile(dk + key * qk,
               source_of(p.dk, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.qk_dim), unscaled);
    store_tile(dv + key * vw, source_of(p.dv, a.dtype, batch, key, a.kv_length, kv_head, a.kv_heads, a.v_dim),
               unscaled);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void attention_tile_avx512(const AttentionProblem& p, std::int64_t batch, std::int64_t head,
                           std::int64_t q_tile) {
  N_AVX3::attention_tile(p, batch, head, q_tile);
}
void attention_tile_avx2(const AttentionProblem& p, std::int64_t batch, std::int64_t head,
                         std::int64_t q_tile) {
  N_AVX2::attention_tile(p, batch, head, q_tile);
}
void attention_backward_head_avx512(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  N_AVX3::attention_backward_head(p, batch, kv_head);
}
void attention_backward_head_avx2(const AttentionProblem& p, std::int64_t batch, std::int64_t kv_head) {
  N_AVX2::attention_backward_head(p, batch, kv_head);
}

}  // namespace switchyard::cpu
#endif
