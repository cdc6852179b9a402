// Attention of one token a row for AVX2 and AVX-512, in fp32: keys and values are widened as they are read,
// up to four queries at a time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/decode_attention_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/decode_attention_problem.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);
constexpr std::int64_t kQueries = 4;                            // at a time
constexpr std::int64_t kVectors = HWY_MAX_BYTES >= 64 ? 4 : 2;  // of values at a time

std::int64_t in_steps(std::int64_t width) {
  return (width + kStep - 1) / kStep * kStep;
}

// kStep elements of x from d on; zeros after the width's end.
template <typename T>
HWY_INLINE V load_within(const T* x, std::int64_t d, std::int64_t width) {
  return d + kStep <= width ? lanes::load(x + d)
                            : lanes::load_some(x + d, static_cast<std::size_t>(width - d));
}

// scores[i][0] = q[i] . k, of `count` queries of floats in rows of `q_row`, padded with zeros.
template <int count, typename T>
void make_scores(const float* HWY_RESTRICT q, std::int64_t q_row, const T* k, std::int64_t width,
                 float* HWY_RESTRICT scores) {
  const D lane;
  V sum[count];
  for (int i = 0; i < count; ++i) sum[i] = hn::Zero(lane);
  for (std::int64_t d = 0; d < width; d += kStep) {
    const V x = load_within(k, d, width);
    for (int i = 0; i < count; ++i) sum[i] = hn::MulAdd(lanes::load(q + i * q_row + d), x, sum[i]);
  }
  for (int i = 0; i < count; ++i) scores[i * kKeysOfPiece] = hn::GetLane(hn::SumOfLanes(lane, sum[i]));
}

// Scores to weights exp(score - largest); returns the largest and the weights' sum. Keys up to a whole step
// are written.
struct Softmax {
  float largest, sum;
};
Softmax make_weights(float* scores, std::int64_t keys) {
  const D lane;
  for (std::int64_t j = keys; j < in_steps(keys); ++j) scores[j] = -std::numeric_limits<float>::infinity();
  V most = lanes::load(scores);
  for (std::int64_t j = kStep; j < keys; j += kStep) most = hn::Max(most, lanes::load(scores + j));
  const float largest = hn::GetLane(hn::MaxOfLanes(lane, most));
  V sum = hn::Zero(lane);
  for (std::int64_t j = 0; j < keys; j += kStep) {
    const V weight = lanes::exp_keeping_nan(hn::Sub(lanes::load(scores + j), hn::Set(lane, largest)));
    lanes::store(weight, scores + j);
    sum = hn::Add(sum, weight);
  }
  return {largest, hn::GetLane(hn::SumOfLanes(lane, sum))};
}

// `vectors` vectors of values from column d on: out[i] = sum over keys of weights[i][key] * v[key].
template <int count, int vectors, typename T>
HWY_INLINE void add_values(const float* weights, const T* v, std::int64_t v_row, std::int64_t d,
                           std::int64_t width, std::int64_t keys, float* out, std::int64_t out_row) {
  const D lane;
  V sum[count][vectors];
  for (int i = 0; i < count; ++i) {
    for (int n = 0; n < vectors; ++n) sum[i][n] = hn::Zero(lane);
  }
  for (std::int64_t j = 0; j < keys; ++j, v += v_row) {
    V x[vectors];
    for (int n = 0; n < vectors; ++n) x[n] = load_within(v, d + n * kStep, width);
    for (int i = 0; i < count; ++i) {
      const V weight = hn::Set(lane, weights[i * kKeysOfPiece + j]);
      for (int n = 0; n < vectors; ++n) sum[i][n] = hn::MulAdd(weight, x[n], sum[i][n]);
    }
  }
  for (int i = 0; i < count; ++i) {
    for (int n = 0; n < vectors; ++n) {
      const std::int64_t column = d + n * kStep;
      float* const to = out + i * out_row + column;
      if (column + kStep <= width)
        lanes::store(sum[i][n], to);
      else
        lanes::store_some(sum[i][n], to, static_cast<std::size_t>(width - column));
    }
  }
}

// Weighted values of `count` queries of one key head.
template <int count, typename T>
void sum_values(const DecodeAttentionPiece& p, const T* v, const float* weights, float* out) {
  const std::int64_t width = p.args->v_dim, row = p.args->kv_heads * width;
  std::int64_t d = 0;
  for (; d + kVectors * kStep <= width; d += kVectors * kStep)
    add_values<count, kVectors>(weights, v, row, d, width, p.keys, out, p.width());
  for (; d < width; d += kStep) add_values<count, 1>(weights, v, row, d, width, p.keys, out, p.width());
}

// Calls body(head, first query, queries) for up to kQueries queries of one key head at a time.
template <typename Body>
HWY_INLINE void each_block(const DecodeAttentionSpec& a, const Body& body) {
  for (std::int64_t head = 0; head < a.kv_heads; ++head) {
    for (std::int64_t g = 0; g < a.group; g += kQueries)
      body(head, head * a.group + g, std::min(kQueries, a.group - g));
  }
}

template <typename T>
void run_piece(const DecodeAttentionPiece& p) {
  static thread_local cpu::ThreadScratch memory;
  const DecodeAttentionSpec& a = *p.args;
  const std::int64_t heads = a.kv_heads * a.group, q_row = in_steps(a.qk_dim);
  float* const q = memory.at_least<float>(heads * (q_row + kKeysOfPiece));
  float* const weights = q + heads * q_row;
  const V scale = hn::Set(D(), a.scale);
  for (std::int64_t i = 0; i < heads; ++i) {
    const T* const from = static_cast<const T*>(p.q) + i * a.qk_dim;
    for (std::int64_t d = 0; d < a.qk_dim; d += kStep)
      lanes::store(hn::Mul(load_within(from, d, a.qk_dim), scale), q + i * q_row + d);
  }
  using Scores = void(const float*, std::int64_t, const T*, std::int64_t, float*);
  constexpr Scores* kScores[] = {make_scores<1, T>, make_scores<2, T>, make_scores<3, T>, make_scores<4, T>};
  // Keys in the order in which they are stored; values, which are read a head at a time, are fetched
  // meanwhile.
  for (std::int64_t j = 0; j < p.keys; ++j) {
    const T* const k = static_cast<const T*>(p.k) + j * a.kv_heads * a.qk_dim;
    const auto* const v =
        reinterpret_cast<const std::byte*>(static_cast<const T*>(p.v) + j * a.kv_heads * a.v_dim);
    for (std::size_t line = 0; line < static_cast<std::size_t>(a.kv_heads * a.v_dim) * sizeof(T); line += 64)
      __builtin_prefetch(v + line);
    each_block(a, [&](std::int64_t head, std::int64_t first, std::int64_t count) {
      kScores[count - 1](q + first * q_row, q_row, k + head * a.qk_dim, a.qk_dim,
                         weights + first * kKeysOfPiece + j);
    });
  }
  for (std::int64_t i = 0; i < heads; ++i) {
    const Softmax softmax = make_weights(weights + i * kKeysOfPiece, p.keys);
    p.sums[i * p.width()] = softmax.largest;
    p.sums[i * p.width() + 1] = softmax.sum;
  }
  using Values = void(const DecodeAttentionPiece&, const T*, const float*, float*);
  constexpr Values* kValues[] = {sum_values<1, T>, sum_values<2, T>, sum_values<3, T>, sum_values<4, T>};
  each_block(a, [&](std::int64_t head, std::int64_t first, std::int64_t count) {
    kValues[count - 1](p, static_cast<const T*>(p.v) + head * a.v_dim, weights + first * kKeysOfPiece,
                       p.sums + first * p.width() + 2);
  });
}

}  // namespace

void decode_attention_piece(const DecodeAttentionPiece& p) {
  p.args->dtype == DType::f32 ? run_piece<float>(p) : run_piece<bfloat16>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

void decode_attention_avx512(const DecodeAttentionPiece& p) {
  N_AVX3::decode_attention_piece(p);
}
void decode_attention_avx2(const DecodeAttentionPiece& p) {
  N_AVX2::decode_attention_piece(p);
}

}  // namespace switchyard::cpu
#endif
