#include "kernels/attention/index_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/index_problem.h"
#include "kernels/cuda/kernels.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/gemm.h"

namespace switchyard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Products of heads and keys that wait for their sum: 4 bytes each, so they stay in a core's second cache or
// near it, and are many against handing out a piece.
constexpr std::int64_t kProductsAtOnce = std::int64_t{1} << 20;

void check(const char* op, const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(), "[{}] {} {} of {}, expected {} of {}",
        op, name, to_string(x.shape()), name_of(x.dtype()), to_string(shape), name_of(dtype));
}

IndexSizes sizes_of(const char* op, const TensorView& q, const TensorView& k, const TensorView& weights) {
  CHECK(q.rank() == 4 && k.rank() == 3 && is_float(q.dtype()), "[{}] q {} of {}, k {}", op,
        to_string(q.shape()), name_of(q.dtype()), to_string(k.shape()));
  const IndexSizes s{q.dim(0), q.dim(1), k.dim(1), q.dim(2), q.dim(3)};
  check(op, "q", q, q.dtype(), q.shape());
  check(op, "k", k, q.dtype(), {s.batch, s.keys, s.width});
  check(op, "weights", weights, DType::f32, {s.batch, s.queries, s.heads});
  return s;
}

// Queries whose products are made at once.
std::int64_t queries_at_once(const IndexSizes& s) {
  return std::clamp<std::int64_t>(kProductsAtOnce / std::max<std::int64_t>(1, s.heads * s.keys), 1,
                                  std::max<std::int64_t>(1, s.queries));
}

Work work_of(const char* op, const IndexSizes& s, DType dtype, double products) {
  const auto pairs = static_cast<double>(s.batch * s.queries * s.keys);
  const auto vectors = static_cast<double>(s.batch * (s.queries * s.heads + s.keys) * s.width) *
                       static_cast<double>(size_of(dtype));
  return {op, dtype, pairs * static_cast<double>(s.heads) * (2 * static_cast<double>(s.width) * products + 2),
          products * vectors + 4 * pairs};
}

// Calls body(batch, first query, queries, products [queries*H,T] f32) for all queries, some after the others.
void for_products(
    ThreadPool& pool, const IndexSizes& s, const TensorView& q, const TensorView& k,
    const std::function<void(std::int64_t, std::int64_t, std::int64_t, const TensorView&)>& body) {
  const std::int64_t most = queries_at_once(s);
  const Tensor products = current_memory().empty(DType::f32, {most * s.heads, s.keys});
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const TensorView keys = k.rows(b, b + 1).reshaped({s.keys, s.width}),
                     vectors = q.rows(b, b + 1).reshaped({s.queries * s.heads, s.width});
    for (std::int64_t first = 0; first < s.queries; first += most) {
      const std::int64_t count = std::min(most, s.queries - first);
      const TensorView here = products.view().rows(0, count * s.heads);
      gemm(pool, {.a = vectors.rows(first * s.heads, (first + count) * s.heads),
                  .b = keys,
                  .c = here,
                  .transpose_b = true});
      body(b, first, count, here);
    }
  }
}

// Of one query: `products` [H,T].
void sum_heads(const IndexSizes& s, const float* products, const float* weights, float factor,
               float* scores) {
  std::fill_n(scores, s.keys, 0.0f);
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float weight = weights[h] * factor;
    const float* const of_head = products + h * s.keys;
    for (std::int64_t t = 0; t < s.keys; ++t) scores[t] += weight * std::max(of_head[t], 0.0f);
  }
}

// Of one row: the scores with -infinity for NaN, by which keys are ordered.
float ordered(float score) {
  return std::isnan(score) ? -kInfinity : score;
}

void choose_of_row(const ChooseKeysArgs& a, std::int64_t row, std::int64_t keys, std::vector<float>& sorted) {
  const float* const scores = a.scores.kernel_data<float>() + row * keys;
  sorted.clear();
  for (std::int64_t t = 0; t < keys; ++t) {
    if (const float score = ordered(scores[t]); score > -kInfinity) sorted.push_back(score);
  }
  const auto count = std::min<std::int64_t>(a.count, std::ssize(sorted));
  float least = kInfinity;  // of the chosen
  if (count > 0) {
    std::nth_element(sorted.begin(), sorted.begin() + (count - 1), sorted.end(), std::greater<>());
    least = sorted[static_cast<std::size_t>(count - 1)];
  }
  std::int64_t equal = count - std::count_if(sorted.begin(), sorted.begin() + count,
                                             [&](float score) { return score > least; });
  std::int32_t* const bits =
      a.bits.defined() ? a.bits.kernel_data<std::int32_t>() + row * words_of_keys(keys) : nullptr;
  std::int32_t* const ids = a.ids.defined() ? a.ids.kernel_data<std::int32_t>() + row * a.count : nullptr;
  if (bits != nullptr) std::fill_n(bits, words_of_keys(keys), 0);
  if (ids != nullptr) std::fill_n(ids, a.count, a.first_id);
  std::int64_t chosen = 0;
  for (std::int64_t t = 0; t < keys && chosen < count; ++t) {
    const float score = ordered(scores[t]);
    if (!(score > least) && !(score == least && equal-- > 0)) continue;
    if (bits != nullptr)
      bits[t / 32] = static_cast<std::int32_t>(static_cast<std::uint32_t>(bits[t / 32]) | 1u << (t % 32));
    if (ids != nullptr) ids[chosen] = a.first_id + static_cast<std::int32_t>(t);
    ++chosen;
  }
}

// Of one query: dproducts [H,T] in `to`, of q's dtype, and the gradients of its weights.
template <typename T>
void spread_heads(const IndexSizes& s, const float* products, const float* weights, float factor,
                  const float* dscores, T* to, float* dweights) {
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float* const of_head = products + h * s.keys;
    T* const to_head = to + h * s.keys;
    const float weight = weights[h] * factor;
    float sum = 0;
    for (std::int64_t t = 0; t < s.keys; ++t) {
      const bool passes = of_head[t] > 0;
      sum += passes ? dscores[t] * of_head[t] : 0.0f;
      to_head[t] = static_cast<T>(passes ? dscores[t] * weight : 0.0f);
    }
    dweights[h] = sum * factor;
  }
}

template <typename T>
void subtract_mean_of(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  const std::int64_t width = x.shape().back(), rows = width == 0 ? 0 : x.size() / width;
  const T* const from = x.kernel_data<T>();
  T* const to = y.kernel_data<T>();
  pool.for_range(rows, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      float sum = 0;
      for (std::int64_t i = 0; i < width; ++i) sum += static_cast<float>(from[row * width + i]);
      const float mean = sum / static_cast<float>(width);
      for (std::int64_t i = 0; i < width; ++i)
        to[row * width + i] = static_cast<T>(static_cast<float>(from[row * width + i]) - mean);
    }
  });
}

}  // namespace

SeenKeys seen_keys(const char* op, const Shape& queries, const Shape& keys, const TensorView& q_index,
                   const TensorView& q_segment, const TensorView& kv_segment) {
  CHECK(q_segment.defined() == kv_segment.defined(), "[{}] segments of queries or of keys only", op);
  if (q_index.defined()) check(op, "q_index", q_index, DType::i32, queries);
  if (q_segment.defined()) check(op, "q_segment", q_segment, DType::i32, queries);
  if (kv_segment.defined()) check(op, "kv_segment", kv_segment, DType::i32, keys);
  return {queries[1], keys[1], q_index.device_data<std::int32_t>(), q_segment.device_data<std::int32_t>(),
          kv_segment.device_data<std::int32_t>()};
}

void index_scores(ThreadPool& pool, const IndexScoresArgs& a) {
  constexpr const char* kOp = "index_scores";
  const IndexSizes s = sizes_of(kOp, a.q, a.k, a.weights);
  check(kOp, "scores", a.scores, DType::f32, {s.batch, s.queries, s.keys});
  const SeenKeys seen =
      seen_keys(kOp, {s.batch, s.queries}, {s.batch, s.keys}, a.q_index, a.q_segment, a.kv_segment);
  if (pool.skips(work_of(kOp, s, a.q.dtype(), 1))) {
    const Buffer taken(pool.counts_workspace()
                           ? static_cast<std::size_t>(queries_at_once(s) * s.heads * s.keys) * sizeof(float)
                           : 0);
    return;
  }
  if (a.q.on_gpu()) return gpu::index_scores(a, s, seen);
  const float* const weights = a.weights.kernel_data<float>();
  float* const scores = a.scores.kernel_data<float>();
  for_products(pool, s, a.q, a.k,
               [&](std::int64_t b, std::int64_t first, std::int64_t count, const TensorView& products) {
                 const float* const from = products.kernel_data<float>();
                 pool.for_range(count, 1, [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t row = b * s.queries + first + i;
                     float* const to = scores + row * s.keys;
                     sum_heads(s, from + i * s.heads * s.keys, weights + row * s.heads, a.factor, to);
                     for (std::int64_t t = 0; t < s.keys; ++t) {
                       if (!seen.sees(b, first + i, t)) to[t] = -kInfinity;
                     }
                   }
                 });
               });
}

void index_scores_backward(ThreadPool& pool, const IndexScoresBackwardArgs& a) {
  constexpr const char* kOp = "index_scores_backward";
  const IndexSizes s = sizes_of(kOp, a.q, a.k, a.weights);
  const DType dtype = a.q.dtype();
  check(kOp, "dscores", a.dscores, DType::f32, {s.batch, s.queries, s.keys});
  check(kOp, "dq", a.dq, dtype, a.q.shape());
  check(kOp, "dk", a.dk, dtype, a.k.shape());
  check(kOp, "dweights", a.dweights, DType::f32, a.weights.shape());
  if (pool.skips(work_of(kOp, s, dtype, 3))) {
    const std::size_t each = sizeof(float) + size_of(dtype);
    const Buffer taken(
        pool.counts_workspace() ? static_cast<std::size_t>(queries_at_once(s) * s.heads * s.keys) * each : 0);
    return;
  }
  if (a.q.on_gpu()) return gpu::index_scores_backward(a, s);
  const Tensor dproducts = current_memory().empty(dtype, {queries_at_once(s) * s.heads, s.keys}),
               dk = current_memory().zeros(DType::f32, a.k.shape());
  const float *const weights = a.weights.kernel_data<float>(), *const dscores =
                                                                   a.dscores.kernel_data<float>();
  float* const dweights = a.dweights.kernel_data<float>();
  for_products(pool, s, a.q, a.k,
               [&](std::int64_t b, std::int64_t first, std::int64_t count, const TensorView& products) {
                 const float* const from = products.kernel_data<float>();
                 const TensorView here = dproducts.view().rows(0, count * s.heads);
                 const auto spread = [&]<typename T>(T* to) {
                   pool.for_range(count, 1, [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       const std::int64_t row = b * s.queries + first + i, at = i * s.heads * s.keys;
                       spread_heads(s, from + at, weights + row * s.heads, a.factor, dscores + row * s.keys,
                                    to + at, dweights + row * s.heads);
                     }
                   });
                 };
                 dtype == DType::f32 ? spread(here.kernel_data<float>())
                                     : spread(here.kernel_data<bfloat16>());
                 const auto of_batch = [&](const TensorView& x, std::int64_t vectors) {
                   return x.rows(b, b + 1).reshaped({vectors, s.width});
                 };
                 const auto queries = [&](const TensorView& x) {
                   return of_batch(x, s.queries * s.heads).rows(first * s.heads, (first + count) * s.heads);
                 };
                 gemm(pool, {.a = here, .b = of_batch(a.k, s.keys), .c = queries(a.dq)});
                 gemm(pool, {.a = here,
                             .b = queries(a.q),
                             .c = of_batch(dk.view(), s.keys),
                             .transpose_a = true,
                             .accumulate = true});
               });
  convert(pool, dk.view(), a.dk);
}

void choose_keys(ThreadPool& pool, const ChooseKeysArgs& a) {
  constexpr const char* kOp = "choose_keys";
  const std::int64_t keys = a.scores.shape().back(), rows = keys == 0 ? 0 : a.scores.size() / keys;
  check(kOp, "scores", a.scores, DType::f32, a.scores.shape());
  CHECK(a.count > 0, "[{}] {} keys to choose", kOp, a.count);
  if (a.bits.defined())
    check(kOp, "bits", a.bits.reshaped({rows, words_of_keys(keys)}), DType::i32, {rows, words_of_keys(keys)});
  if (a.ids.defined()) check(kOp, "ids", a.ids.reshaped({rows, a.count}), DType::i32, {rows, a.count});
  if (pool.skips({kOp, DType::f32, 4 * static_cast<double>(a.scores.size()),
                  static_cast<double>(a.scores.bytes() + (a.bits.defined() ? a.bits.bytes() : 0) +
                                      (a.ids.defined() ? a.ids.bytes() : 0))}))
    return;
  if (a.scores.on_gpu()) return gpu::choose_keys(a);
  pool.for_range(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sorted;
    sorted.reserve(static_cast<std::size_t>(keys));
    for (std::int64_t row = begin; row < end; ++row) choose_of_row(a, row, keys, sorted);
  });
}

void subtract_mean(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  CHECK(is_float(x.dtype()), "[subtract_mean] {}", name_of(x.dtype()));
  check("subtract_mean", "x", x, x.dtype(), x.shape());
  check("subtract_mean", "y", y, x.dtype(), x.shape());
  if (pool.skips({"subtract_mean", x.dtype(), 2 * static_cast<double>(x.size()),
                  2 * static_cast<double>(x.bytes())}))
    return;
  if (x.on_gpu()) return gpu::subtract_mean(x, y);
  x.dtype() == DType::f32 ? subtract_mean_of<float>(pool, x, y) : subtract_mean_of<bfloat16>(pool, x, y);
}

}  // namespace switchyard
