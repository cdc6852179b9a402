// Attention of one token a row for AVX2 and AVX-512, in fp32: keys and values are widened as they are read,
// up to four queries at a time. Scales of int8 multiply what a key's numbers sum to, and a value's weight.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/decode_attention_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/attention/decode_attention_problem.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"
#include "kernels/cpu/row_fetcher.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);
constexpr std::int64_t kQueries = 4;                            // at a time
constexpr int kKeysAtOnce = HWY_MAX_BYTES >= 64 ? 4 : 2;        // of int8
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

// Lane i of the result is the sum of the lanes of the vector at x + i * kStep. Cheaper
// than so many sums alone.
HWY_INLINE V sums_of_lanes(const float* x) {
#if HWY_TARGET == HWY_SCALAR  // which nobody runs, and which has no pairs
  return lanes::load(x);
#else
  const D lane;
  V sums[kStep];
  for (std::int64_t i = 0; i < kStep; ++i) sums[i] = lanes::load(x + i * kStep);
  for (std::int64_t left = kStep; left > 1; left /= 2) {
    for (std::int64_t i = 0; i < left / 2; ++i) {
      const V low = sums[2 * i], high = sums[2 * i + 1];
      sums[i] = hn::Add(hn::ConcatEven(lane, high, low), hn::ConcatOdd(lane, high, low));
    }
  }
  return sums[0];
#endif
}

// Prefetches what is read next, a few lines at a time.
struct FetchAhead {
  cpu::RowFetcher<std::int8_t> keys, values;
  std::int64_t lines;

  void fetch() {
    keys.fetch(lines);
    values.fetch(lines);
  }
};

// sums[i][key] = products of q[i] and the key's part of `width` numbers, still to be summed over the lanes,
// of kStep keys; of fewer the last counts several times.
template <int count>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT q, std::int64_t q_row, const std::int8_t* k,
                              std::int64_t k_row, std::int64_t keys, std::int64_t width, FetchAhead& ahead,
                              float* HWY_RESTRICT sums) {
  for (std::int64_t j = 0; j < kStep; j += kKeysAtOnce) {
    ahead.fetch();
    const std::int8_t* key[kKeysAtOnce];
    V sum[count][kKeysAtOnce];
    for (int n = 0; n < kKeysAtOnce; ++n) {
      key[n] = k + std::min(j + n, keys - 1) * k_row;
      for (int i = 0; i < count; ++i) sum[i][n] = hn::Zero(D());
    }
    for (std::int64_t d = 0; d < width; d += kStep) {
      V x[kKeysAtOnce];
      for (int n = 0; n < kKeysAtOnce; ++n) x[n] = load_within(key[n], d, width);
      for (int i = 0; i < count; ++i) {
        const V of_query = lanes::load(q + i * q_row + d);
        for (int n = 0; n < kKeysAtOnce; ++n) sum[i][n] = hn::MulAdd(of_query, x[n], sum[i][n]);
      }
    }
    for (int i = 0; i < count; ++i) {
      for (int n = 0; n < kKeysAtOnce; ++n) lanes::store(sum[i][n], sums + (i * kStep + j + n) * kStep);
    }
  }
}

// Does what make_scores does, for up to kStep keys in int8 with their scales; writes
// scores[i] of kStep keys.
template <int count>
void make_int8_scores(const DecodeAttentionSpec& a, const float* HWY_RESTRICT q, std::int64_t q_row,
                      const std::int8_t* k, const float* scales, std::int64_t keys, FetchAhead& ahead,
                      float* HWY_RESTRICT scores) {
  alignas(64) float sums[count * kStep * kStep], of_keys[kStep];
  V score[count];
  for (int i = 0; i < count; ++i) score[i] = hn::Zero(D());
  for (std::int64_t part = 0; part < a.key_scales; ++part) {
    const std::int64_t begin = part * a.first_key_part,
                       width = part == 0 ? a.first_key_part : a.qk_dim - begin;
    multiply_keys<count>(q + in_steps(begin), q_row, k + begin, a.kv_heads * a.qk_dim, keys, width, ahead,
                         sums);
    for (std::int64_t j = 0; j < kStep; ++j)
      of_keys[j] = scales[std::min(j, keys - 1) * a.kv_heads * a.key_scales + part];
    const V scale = lanes::load(of_keys);
    for (int i = 0; i < count; ++i)
      score[i] = hn::MulAdd(sums_of_lanes(sums + i * kStep * kStep), scale, score[i]);
  }
  for (int i = 0; i < count; ++i) lanes::store(score[i], scores + i * kKeysOfPiece);
}

// Scores to weights exp(score - largest); returns the largest and the weights' sum. Keys up to
// a whole step are written.
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
  const std::int64_t width = p.args->v_dim, row = p.args->kv_heads * p.args->v_row;
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

// Queries as floats, scaled: in each row the parts of a key, padded with zeros to whole steps.
template <typename T>
void place_queries(const DecodeAttentionPiece& p, float* q, std::int64_t q_row) {
  const DecodeAttentionSpec& a = *p.args;
  const V scale = hn::Set(D(), a.scale);
  const auto place = [&](const T* from, std::int64_t width, float* to) {
    for (std::int64_t d = 0; d < width; d += kStep)
      lanes::store(hn::Mul(load_within(from, d, width), scale), to + d);
  };
  for (std::int64_t i = 0; i < a.kv_heads * a.group; ++i) {
    const T* const from = static_cast<const T*>(p.q) + i * a.qk_dim;
    float* const to = q + i * q_row;
    place(from, a.first_key_part, to);
    place(from + a.first_key_part, a.qk_dim - a.first_key_part, to + in_steps(a.first_key_part));
  }
}

// Scores of all keys, in the order in which these are stored; values, which are read a head at
// a time, are fetched meanwhile.
template <typename T>
void score_keys(const DecodeAttentionPiece& p, const float* q, std::int64_t q_row, float* weights) {
  const DecodeAttentionSpec& a = *p.args;
  using Scores = void(const float*, std::int64_t, const T*, std::int64_t, float*);
  constexpr Scores* kScores[] = {make_scores<1, T>, make_scores<2, T>, make_scores<3, T>, make_scores<4, T>};
  const std::size_t fetched =
      a.values_in_keys() ? 0 : static_cast<std::size_t>(a.kv_heads * a.v_dim) * sizeof(T);
  for (std::int64_t j = 0; j < p.keys; ++j) {
    const T* const k = static_cast<const T*>(p.k) + j * a.kv_heads * a.qk_dim;
    const auto* const v =
        reinterpret_cast<const std::byte*>(static_cast<const T*>(p.v) + j * a.kv_heads * a.v_row);
    for (std::size_t line = 0; line < fetched; line += 64) __builtin_prefetch(v + line);
    each_block(a, [&](std::int64_t head, std::int64_t first, std::int64_t count) {
      kScores[count - 1](q + first * q_row, q_row, k + head * a.qk_dim, a.qk_dim,
                         weights + first * kKeysOfPiece + j);
    });
  }
}

// Scores several int8 keys of one head before the next head's. So keys too are prefetched in stored order.
void score_int8_keys(const DecodeAttentionPiece& p, const float* q, std::int64_t q_row, float* weights) {
  const DecodeAttentionSpec& a = *p.args;
  using Scores = void(const DecodeAttentionSpec&, const float*, std::int64_t, const std::int8_t*,
                      const float*, std::int64_t, FetchAhead&, float*);
  constexpr Scores* kScores[] = {make_int8_scores<1>, make_int8_scores<2>, make_int8_scores<3>,
                                 make_int8_scores<4>};
  const auto *const k = static_cast<const std::int8_t*>(p.k), *const v = static_cast<const std::int8_t*>(p.v);
  const std::int64_t k_row = a.kv_heads * a.qk_dim, v_row = a.kv_heads * a.v_row,
                     lines = (kStep * std::max(k_row, v_row) + 63) / 64,
                     calls = a.kv_heads * ((a.group + kQueries - 1) / kQueries) * a.key_scales *
                             (kStep / kKeysAtOnce);  // of fetch() for kStep keys
  FetchAhead ahead{{k, 0, 1, p.keys * k_row}, {v, 0, 1, p.keys * v_row}, (lines + calls - 1) / calls};
  ahead.keys.fetch(lines);
  for (std::int64_t j = 0; j < p.keys; j += kStep) {
    each_block(a, [&](std::int64_t head, std::int64_t first, std::int64_t count) {
      kScores[count - 1](a, q + first * q_row, q_row, k + j * k_row + head * a.qk_dim,
                         p.k_scales + (j * a.kv_heads + head) * a.key_scales, std::min(kStep, p.keys - j),
                         ahead, weights + first * kKeysOfPiece + j);
    });
  }
}

template <typename T, typename Stored>
void run_piece(const DecodeAttentionPiece& p) {
  static thread_local cpu::ThreadScratch memory;
  const DecodeAttentionSpec& a = *p.args;
  const std::int64_t heads = a.kv_heads * a.group,
                     q_row = in_steps(a.first_key_part) + in_steps(a.qk_dim - a.first_key_part);
  float* const q = memory.at_least<float>(heads * (q_row + kKeysOfPiece));
  float* const weights = q + heads * q_row;
  place_queries<T>(p, q, q_row);
  if constexpr (std::is_same_v<Stored, std::int8_t>)
    score_int8_keys(p, q, q_row, weights);
  else
    score_keys<Stored>(p, q, q_row, weights);
  for (std::int64_t i = 0; i < heads; ++i) {
    const Softmax softmax = make_weights(weights + i * kKeysOfPiece, p.keys);
    p.sums[i * p.width()] = softmax.largest;
    p.sums[i * p.width() + 1] = softmax.sum;
    if (!a.int8) continue;
    const float* const scales = p.v_scales + i / a.group * a.v_scale_row;
    for (std::int64_t j = 0; j < p.keys; ++j)
      weights[i * kKeysOfPiece + j] *= scales[j * a.kv_heads * a.v_scale_row];
  }
  using Values = void(const DecodeAttentionPiece&, const Stored*, const float*, float*);
  constexpr Values* kValues[] = {sum_values<1, Stored>, sum_values<2, Stored>, sum_values<3, Stored>,
                                 sum_values<4, Stored>};
  each_block(a, [&](std::int64_t head, std::int64_t first, std::int64_t count) {
    kValues[count - 1](p, static_cast<const Stored*>(p.v) + head * a.v_row, weights + first * kKeysOfPiece,
                       p.sums + first * p.width() + 2);
  });
}

}  // namespace

void decode_attention_simd(const DecodeAttentionPiece& p) {
  const bool single = p.args->dtype == DType::f32;
  if (p.args->int8)
    single ? run_piece<float, std::int8_t>(p) : run_piece<bfloat16, std::int8_t>(p);
  else
    single ? run_piece<float, float>(p) : run_piece<bfloat16, bfloat16>(p);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(decode_attention, (const DecodeAttentionPiece& p), (p))

}  // namespace switchyard::cpu
#endif
