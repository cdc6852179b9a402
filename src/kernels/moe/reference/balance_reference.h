// The reference implementation of balance.h, in double, from its definition; gradients by differences.
#pragma once

#include <cmath>
#include <vector>

#include "kernels/moe/router_scores.h"

namespace switchyard::reference {

struct BalanceReference {
  std::int64_t batch, length, experts, per_token;
  RouterScore score;
  bool softmax_of_scores;
  double factor;
  std::vector<double> logits, bias;  // bias may be empty
  const std::int32_t* ids;
  const std::int32_t* segments;  // null: all tokens count

  std::vector<double> probabilities(std::int64_t token) const {
    const auto softmax = [](std::vector<double>& x) {
      double sum = 0;
      for (double& v : x) sum += v = std::exp(v);
      for (double& v : x) v /= sum;
    };
    std::vector<double> p(logits.begin() + token * experts, logits.begin() + (token + 1) * experts);
    if (score == RouterScore::softmax) softmax(p);
    if (score == RouterScore::sigmoid) {
      for (double& v : p) v = 1 / (1 + std::exp(-v));
    }
    if (score == RouterScore::sqrt_softplus) {
      for (double& v : p) v = std::sqrt(std::log1p(std::exp(v)));
    }
    for (std::size_t e = 0; e < bias.size(); ++e) p[e] += bias[e];
    if (softmax_of_scores) {
      softmax(p);
    } else if (scores_each_alone(score)) {
      double sum = 0;
      for (const double v : p) sum += v;
      for (double& v : p) v /= sum;
    }
    return p;
  }

  double loss() const {
    double result = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      std::vector<double> choices(static_cast<std::size_t>(experts)), sums = choices;
      double tokens = 0;
      for (std::int64_t t = b * length; t < (b + 1) * length; ++t) {
        if (segments != nullptr && segments[t] == 0) continue;
        ++tokens;
        for (std::int64_t k = 0; k < per_token; ++k)
          ++choices[static_cast<std::size_t>(ids[t * per_token + k])];
        const auto p = probabilities(t);
        for (std::size_t e = 0; e < p.size(); ++e) sums[e] += p[e];
      }
      if (tokens == 0) continue;
      for (std::size_t e = 0; e < sums.size(); ++e) result += choices[e] / tokens * sums[e] / tokens;
    }
    return factor * result;
  }

  // The gradient of the loss for every element of x, which is `logits` or `bias`.
  std::vector<double> gradient(std::vector<double>& x) const {
    constexpr double kStep = 1e-4;
    std::vector<double> result;
    for (double& v : x) {
      const double before = v;
      v = before + kStep;
      const double above = loss();
      v = before - kStep;
      result.push_back((above - loss()) / (2 * kStep));
      v = before;
    }
    return result;
  }
};

}  // namespace switchyard::reference
