// Scalar truth for index_keys.h and index_loss.h, in double, one query at a time. T is float, bfloat16 or
// double. Null pointers of places, segments and chosen bits as in SeenKeys.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_problem.h"
#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::reference {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

// Written apart from SeenKeys::sees, which it checks.
inline bool sees(const SeenKeys& s, std::int64_t b, std::int64_t i, std::int64_t t) {
  const bool one_segment =
      s.q_segment == nullptr || s.q_segment[b * s.queries + i] == s.kv_segment[b * s.keys + t];
  const std::int64_t place = s.q_index == nullptr ? i : s.q_index[b * s.queries + i];
  return one_segment && t <= place;
}

// Calls body(b, i, h, t, row, product) for all products of a query's head and a key; row = b * S + i.
template <typename T, typename Body>
void for_each_product(const IndexSizes& s, const T* q, const T* k, const Body& body) {
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t i = 0; i < s.queries; ++i)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t t = 0; t < s.keys; ++t) {
          const std::int64_t row = b * s.queries + i;
          double product = 0;
          for (std::int64_t d = 0; d < s.width; ++d)
            product += to_double(q[(row * s.heads + h) * s.width + d]) *
                       to_double(k[(b * s.keys + t) * s.width + d]);
          body(b, i, h, t, row, product);
        }
}

template <typename T, typename W, typename R>
void index_scores(const IndexSizes& s, const SeenKeys& seen, const T* q, const T* k, const W* weights,
                  double factor, R* scores) {
  std::vector<double> sums(static_cast<std::size_t>(s.batch * s.queries * s.keys));
  for_each_product(
      s, q, k,
      [&](std::int64_t, std::int64_t, std::int64_t h, std::int64_t t, std::int64_t row, double product) {
        sums[static_cast<std::size_t>(row * s.keys + t)] +=
            factor * to_double(weights[row * s.heads + h]) * std::max(product, 0.0);
      });
  for (std::int64_t row = 0; row < s.batch * s.queries; ++row)
    for (std::int64_t t = 0; t < s.keys; ++t)
      scores[row * s.keys + t] = static_cast<R>(sees(seen, row / s.queries, row % s.queries, t)
                                                    ? sums[static_cast<std::size_t>(row * s.keys + t)]
                                                    : kNever);
}

template <typename T>
void index_scores_backward(const IndexSizes& s, const T* q, const T* k, const float* weights, double factor,
                           const float* dscores, T* dq, T* dk, float* dweights) {
  const auto sized = [](std::int64_t n) { return std::vector<double>(static_cast<std::size_t>(n)); };
  std::vector<double> q_sum = sized(s.batch * s.queries * s.heads * s.width),
                      k_sum = sized(s.batch * s.keys * s.width), w_sum = sized(s.batch * s.queries * s.heads);
  for_each_product(
      s, q, k,
      [&](std::int64_t b, std::int64_t, std::int64_t h, std::int64_t t, std::int64_t row, double product) {
        if (product <= 0) return;
        const std::int64_t vector = row * s.heads + h, key = b * s.keys + t;
        const double g = factor * static_cast<double>(dscores[row * s.keys + t]);
        w_sum[static_cast<std::size_t>(vector)] += g * product;
        for (std::int64_t d = 0; d < s.width; ++d) {
          const double of_product = g * static_cast<double>(weights[vector]);
          q_sum[static_cast<std::size_t>(vector * s.width + d)] +=
              of_product * to_double(k[key * s.width + d]);
          k_sum[static_cast<std::size_t>(key * s.width + d)] +=
              of_product * to_double(q[vector * s.width + d]);
        }
      });
  for (std::size_t i = 0; i < q_sum.size(); ++i) dq[i] = from_double<T>(q_sum[i]);
  for (std::size_t i = 0; i < k_sum.size(); ++i) dk[i] = from_double<T>(k_sum[i]);
  for (std::size_t i = 0; i < w_sum.size(); ++i) dweights[i] = static_cast<float>(w_sum[i]);
}

// The chosen keys of a row, ascending: by sorting all.
inline std::vector<std::int64_t> chosen_keys(const float* scores, std::int64_t keys, std::int64_t count) {
  std::vector<std::int64_t> order;
  for (std::int64_t t = 0; t < keys; ++t)
    if (scores[t] > -std::numeric_limits<float>::infinity()) order.push_back(t);  // false of NaN
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(count, std::ssize(order))));
  std::sort(order.begin(), order.end());
  return order;
}

// [B,S,T] of q [B,S,N,D] and k [B,T,N,D]; `chosen`: bits, or null.
template <typename T, typename R>
void head_shares(const IndexSizes& s, const SeenKeys& seen, const T* q, const T* k,
                 const std::int32_t* chosen, double scale, R* shares) {
  const std::int64_t words = words_of_keys(s.keys);
  std::vector<double> score(static_cast<std::size_t>(s.keys)), sum(score.size());
  for (std::int64_t row = 0; row < s.batch * s.queries; ++row) {
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t n = 0; n < s.heads; ++n) {
      double top = kNever, total = 0;
      for (std::int64_t t = 0; t < s.keys; ++t) {
        double& x = score[static_cast<std::size_t>(t)];
        x = kNever;
        if (!sees(seen, row / s.queries, row % s.queries, t)) continue;
        if (chosen != nullptr &&
            (static_cast<std::uint32_t>(chosen[row * words + t / 32]) >> t % 32 & 1u) == 0)
          continue;
        x = 0;
        for (std::int64_t d = 0; d < s.width; ++d)
          x += scale * to_double(q[(row * s.heads + n) * s.width + d]) *
               to_double(k[((row / s.queries * s.keys + t) * s.heads + n) * s.width + d]);
        top = std::max(top, x);
      }
      for (const double x : score) total += x == kNever ? 0 : std::exp(x - top);
      for (std::size_t t = 0; t < score.size(); ++t)
        sum[t] += score[t] == kNever ? 0 : std::exp(score[t] - top) / total;
    }
    for (std::size_t t = 0; t < sum.size(); ++t)
      shares[row * s.keys + static_cast<std::int64_t>(t)] = static_cast<R>(sum[t]);
  }
}

// The loss of rows of `keys`; R is float or double.
template <typename R>
double index_loss(std::int64_t rows, std::int64_t keys, const R* scores, const R* shares,
                  const std::int32_t* chosen) {
  constexpr double kEpsilon = 1e-8;
  double loss = 0;
  std::vector<double> score(static_cast<std::size_t>(keys));
  for (std::int64_t row = 0; row < rows; ++row) {
    double top = kNever, total = 0, share_sum = kEpsilon;
    for (std::int64_t t = 0; t < keys; ++t) {
      const bool takes_part =
          chosen == nullptr ||
          (static_cast<std::uint32_t>(chosen[row * words_of_keys(keys) + t / 32]) >> t % 32 & 1u) != 0;
      score[static_cast<std::size_t>(t)] = takes_part ? static_cast<double>(scores[row * keys + t]) : kNever;
      top = std::max(top, score[static_cast<std::size_t>(t)]);
      share_sum += static_cast<double>(shares[row * keys + t]);
    }
    if (top == kNever) continue;
    for (const double x : score) total += std::exp(x - top);
    for (std::int64_t t = 0; t < keys; ++t) {
      const double p = static_cast<double>(shares[row * keys + t]) / share_sum,
                   c = std::exp(score[static_cast<std::size_t>(t)] - top) / total;
      loss += p * (std::log(p + kEpsilon) - std::log(c + kEpsilon));
    }
  }
  return loss;
}

}  // namespace switchyard::reference
