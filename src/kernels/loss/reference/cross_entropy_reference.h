// Scalar truth for cross_entropy.h, in double. T is float, bfloat16 or double: args.hidden and args.weight
// point to it (args.dtype is not read). dlogit is not rounded.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::reference {

// Index of weight element (e, v).
inline std::int64_t weight_index(const CrossEntropyProblem& a, std::int64_t e, std::int64_t v) {
  return a.weight_vocab_major ? v * a.emb + e : e * a.vocab + v;
}

// Soft-capped logit of row r and local column v; *derivative (if given) is d capped / d product.
template <typename T>
double logit(const CrossEntropyProblem& a, std::int64_t r, std::int64_t v, double* derivative = nullptr) {
  const auto* hidden = static_cast<const T*>(a.hidden);
  const auto* weight = static_cast<const T*>(a.weight);
  double sum = 0;
  for (std::int64_t e = 0; e < a.emb; ++e) {
    sum += to_double(hidden[r * a.emb + e]) * to_double(weight[weight_index(a, e, v)]);
  }
  if (derivative) *derivative = 1;
  if (!(a.logit_soft_cap > 0)) return sum;
  const double tanh = std::tanh(sum / static_cast<double>(a.logit_soft_cap));
  if (derivative) *derivative = 1 - tanh * tanh;
  return static_cast<double>(a.logit_soft_cap) * tanh;
}

template <typename T, typename R>
void linear_cross_entropy(const CrossEntropyProblem& a, R* lse, R* target_logit) {
  std::vector<double> logits(static_cast<std::size_t>(a.vocab));
  for (std::int64_t r = 0; r < a.rows; ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    double target = 0;
    for (std::int64_t v = 0; v < a.vocab; ++v) {
      const double value = logit<T>(a, r, v);
      logits[static_cast<std::size_t>(v)] = value;
      maximum = std::max(maximum, value);
      if (a.targets[r] == a.vocab_begin + v) target = value;
    }
    double sum = 0;
    for (double value : logits) sum += std::exp(value - maximum);
    lse[r] = static_cast<R>(a.vocab > 0 ? maximum + std::log(sum) : maximum);
    target_logit[r] = static_cast<R>(target);
  }
}

template <typename T, typename R, typename W = R>
void linear_cross_entropy_backward(const CrossEntropyProblem& a, const R* lse, const R* softmax_coefficient,
                                   const R* target_coefficient, R* dhidden, W* dweight) {
  const auto* hidden = static_cast<const T*>(a.hidden);
  const auto* weight = static_cast<const T*>(a.weight);
  std::vector<double> hidden_sum(static_cast<std::size_t>(a.rows * a.emb));
  std::vector<double> weight_sum(static_cast<std::size_t>(a.vocab * a.emb));
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t v = 0; v < a.vocab; ++v) {
      double derivative = 1;
      double g =
          to_double(softmax_coefficient[r]) * std::exp(logit<T>(a, r, v, &derivative) - to_double(lse[r]));
      if (a.targets[r] == a.vocab_begin + v) g -= to_double(target_coefficient[r]);
      g *= derivative;
      for (std::int64_t e = 0; e < a.emb; ++e) {
        const std::int64_t w = weight_index(a, e, v);
        hidden_sum[static_cast<std::size_t>(r * a.emb + e)] += g * to_double(weight[w]);
        weight_sum[static_cast<std::size_t>(w)] += g * to_double(hidden[r * a.emb + e]);
      }
    }
  }
  for (std::size_t i = 0; i < hidden_sum.size(); ++i) dhidden[i] = static_cast<R>(hidden_sum[i]);
  for (std::size_t i = 0; dweight != nullptr && i < weight_sum.size(); ++i)
    dweight[i] = from_double<W>(weight_sum[i]);
}

}  // namespace switchyard::reference
