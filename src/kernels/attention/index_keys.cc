#include "kernels/attention/index_keys.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/index_problem.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/gemm.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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

// One query's scores, of `products` [H,T].
void sum_heads(const IndexSizes& s, const float* products, const float* weights, float factor,
               float* scores) {
  std::fill_n(scores, s.keys, 0.0f);
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float weight = weights[h] * factor;
    const float* const of_head = products + h * s.keys;
    for (std::int64_t t = 0; t < s.keys; ++t) scores[t] += weight * std::max(of_head[t], 0.0f);
  }
}

// The score by which a key is ordered: -infinity for NaN.
float ordered(float score) {
  return std::isnan(score) ? -kInfinity : score;
}

void choose_in_row(const ChooseKeysArgs& a, std::int64_t row, std::int64_t keys, std::vector<float>& sorted) {
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

// Makes one query's gradients: dproducts [H,T] in `to`, of q's dtype, and those of its weights.
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
void center_rows(ThreadPool& pool, const TensorView& x, const TensorView& y) {
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

void scores_of_queries(ThreadPool& pool, const IndexScoresArgs& a) {
  const IndexSizes s = index_sizes(a);
  const SeenKeys seen = seen_keys(a);
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

void gradients_of_queries(ThreadPool& pool, const IndexScoresBackwardArgs& a) {
  const IndexSizes s = index_sizes(a);
  const DType dtype = a.q.dtype();
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

void choose_in_rows(ThreadPool& pool, const ChooseKeysArgs& a) {
  const std::int64_t keys = a.scores.shape().back(), rows = keys == 0 ? 0 : a.scores.size() / keys;
  pool.for_range(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sorted;
    sorted.reserve(static_cast<std::size_t>(keys));
    for (std::int64_t row = begin; row < end; ++row) choose_in_row(a, row, keys, sorted);
  });
}

void center(ThreadPool& pool, const SubtractMeanArgs& a) {
  a.x.dtype() == DType::f32 ? center_rows<float>(pool, a.x, a.y) : center_rows<bfloat16>(pool, a.x, a.y);
}

Work products_work(const IndexSizes& s, DType dtype, double products) {
  const auto pairs = static_cast<double>(s.batch * s.queries * s.keys);
  const auto vectors = static_cast<double>(s.batch * (s.queries * s.heads + s.keys) * s.width) *
                       static_cast<double>(size_of(dtype));
  return {.dtype = dtype,
          .flops = pairs * static_cast<double>(s.heads) * (2 * static_cast<double>(s.width) * products + 2),
          .bytes = products * vectors + 4 * pairs};
}

Work scores_work(const IndexScoresArgs& a) {
  return products_work(index_sizes(a), a.q.dtype(), 1);
}

Work gradients_work(const IndexScoresBackwardArgs& a) {
  return products_work(index_sizes(a), a.q.dtype(), 3);
}

Work choice_work(const ChooseKeysArgs& a) {
  const std::size_t results = (a.bits.defined() ? a.bits.bytes() : 0) + (a.ids.defined() ? a.ids.bytes() : 0);
  return {.flops = 4 * static_cast<double>(a.scores.size()),
          .bytes = static_cast<double>(a.scores.bytes() + results)};
}

Work center_work(const SubtractMeanArgs& a) {
  return {.dtype = a.x.dtype(),
          .flops = 2 * static_cast<double>(a.x.size()),
          .bytes = 2 * static_cast<double>(a.x.bytes())};
}

std::size_t scores_workspace(const IndexScoresArgs& a) {
  return products_bytes(index_sizes(a), sizeof(float));
}

std::size_t gradients_workspace(const IndexScoresBackwardArgs& a) {
  return products_bytes(index_sizes(a), sizeof(float) + size_of(a.q.dtype()));
}

constexpr Implementation<IndexScoresArgs> kIndexKeysScores[] = {
    {"cuda", Gpu::any, gpu::index_scores},
    {"portable", Isa::ref, scores_of_queries, nullptr, scores_workspace}};
constexpr Implementation<IndexScoresBackwardArgs> kIndexKeysGradients[] = {
    {"cuda", Gpu::any, gpu::index_scores_backward},
    {"portable", Isa::ref, gradients_of_queries, nullptr, gradients_workspace}};
constexpr Implementation<ChooseKeysArgs> kChoices[] = {{"cuda", Gpu::any, gpu::choose_keys},
                                                       {"portable", Isa::ref, choose_in_rows}};
constexpr Implementation<SubtractMeanArgs> kCenters[] = {{"cuda", Gpu::any, gpu::subtract_mean},
                                                         {"portable", Isa::ref, center}};
constexpr Kernel<IndexScoresArgs> kIndexScores{"index_scores", scores_work, &IndexScoresArgs::q,
                                               kIndexKeysScores};
constexpr Kernel<IndexScoresBackwardArgs> kIndexScoresBackward{
    "index_scores_backward", gradients_work, &IndexScoresBackwardArgs::q, kIndexKeysGradients};
constexpr Kernel<ChooseKeysArgs> kChooseKeys{"choose_keys", choice_work, &ChooseKeysArgs::scores, kChoices};
constexpr Kernel<SubtractMeanArgs> kSubtractMean{"subtract_mean", center_work, &SubtractMeanArgs::x,
                                                 kCenters};

template <typename Args>
void check_vectors(const char* op, const Args& a) {
  CHECK(a.q.rank() == 4 && a.k.rank() == 3 && is_float(a.q.dtype()), "[{}] q {} of {}, k {}", op,
        to_string(a.q.shape()), name_of(a.q.dtype()), to_string(a.k.shape()));
  const IndexSizes s = index_sizes(a);
  check_view(op, "q", a.q, a.q.dtype(), a.q.shape());
  check_view(op, "k", a.k, a.q.dtype(), {s.batch, s.keys, s.width});
  check_view(op, "weights", a.weights, DType::f32, {s.batch, s.queries, s.heads});
}

}  // namespace

void index_scores(ThreadPool& pool, const IndexScoresArgs& a) {
  constexpr const char* kOp = "index_scores";
  check_vectors(kOp, a);
  check_view(kOp, "scores", a.scores, DType::f32, {a.q.dim(0), a.q.dim(1), a.k.dim(1)});
  check_masks(kOp, a);
  run(pool, kIndexScores, a);
}

void index_scores_backward(ThreadPool& pool, const IndexScoresBackwardArgs& a) {
  constexpr const char* kOp = "index_scores_backward";
  check_vectors(kOp, a);
  check_view(kOp, "dscores", a.dscores, DType::f32, {a.q.dim(0), a.q.dim(1), a.k.dim(1)});
  check_view(kOp, "dq", a.dq, a.q.dtype(), a.q.shape());
  check_view(kOp, "dk", a.dk, a.q.dtype(), a.k.shape());
  check_view(kOp, "dweights", a.dweights, DType::f32, a.weights.shape());
  run(pool, kIndexScoresBackward, a);
}

void choose_keys(ThreadPool& pool, const ChooseKeysArgs& a) {
  constexpr const char* kOp = "choose_keys";
  const std::int64_t keys = a.scores.shape().back(), rows = keys == 0 ? 0 : a.scores.size() / keys;
  check_view(kOp, "scores", a.scores, DType::f32, a.scores.shape());
  CHECK(a.count > 0, "[{}] {} keys to choose", kOp, a.count);
  if (a.bits.defined())
    check_view(kOp, "bits", a.bits.reshaped({rows, words_of_keys(keys)}), DType::i32,
               {rows, words_of_keys(keys)});
  if (a.ids.defined()) check_view(kOp, "ids", a.ids.reshaped({rows, a.count}), DType::i32, {rows, a.count});
  run(pool, kChooseKeys, a);
}

void subtract_mean(ThreadPool& pool, const TensorView& x, const TensorView& y) {
  CHECK(is_float(x.dtype()), "[subtract_mean] {}", name_of(x.dtype()));
  check_view("subtract_mean", "x", x, x.dtype(), x.shape());
  check_view("subtract_mean", "y", y, x.dtype(), x.shape());
  run(pool, kSubtractMean, {x, y});
}

}  // namespace switchyard
