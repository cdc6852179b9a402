// The reference implementation of route.h for one token:
// full sorts, weights in double, gradients by differences.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/moe/route.h"

namespace switchyard::reference {

// Indices of the `count` largest values, largest first; equal values keep their order.
inline std::vector<std::int32_t> best_indices(const std::vector<float>& values, std::int64_t count) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

// The best experts by scores in fp32, as the kernel has them, so that near ties fall alike.
inline std::vector<std::int32_t> chosen_ids(const RoutingRule& rule, std::span<const float> logits,
                                            std::span<const float> bias, std::int64_t per_token) {
  std::vector<float> scores(logits.size());
  router_scores(rule.choose_by_logit ? RouterScore::none : rule.score, logits, scores);
  for (std::size_t e = 0; e < bias.size(); ++e) scores[e] += bias[e];
  if (rule.groups > 1) {
    const std::size_t groups = static_cast<std::size_t>(rule.groups), size = scores.size() / groups;
    std::vector<float> of_group;
    for (std::size_t g = 0; g < groups; ++g) {
      std::vector<float> members(scores.begin() + static_cast<std::ptrdiff_t>(g * size),
                                 scores.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      const bool two = rule.by_two_best || scores_each_alone(rule.score);
      of_group.push_back(members[0] + (two && size > 1 ? members[1] : 0));
    }
    const auto kept = best_indices(of_group, rule.kept_groups);
    for (std::size_t e = 0; e < scores.size(); ++e) {
      if (std::count(kept.begin(), kept.end(), static_cast<std::int32_t>(e / size)) == 0)
        scores[e] = -std::numeric_limits<float>::infinity();
    }
  }
  return best_indices(scores, per_token);
}

inline std::vector<double> chosen_weights(const RoutingRule& rule, const std::vector<double>& logits,
                                          const std::vector<double>& bias,
                                          std::span<const std::int32_t> ids) {
  double sum = 0;
  for (const double v : logits) sum += std::exp(v);
  std::vector<double> weights;
  for (const std::int32_t id : ids) {
    if (id < 0) {
      weights.push_back(0);
      continue;
    }
    const auto e = static_cast<std::size_t>(id);
    double w = logits[e];
    if (rule.score == RouterScore::softmax) w = std::exp(w) / sum;
    if (rule.score == RouterScore::sigmoid) w = 1 / (1 + std::exp(-w));
    if (rule.score == RouterScore::sqrt_softplus) w = std::sqrt(std::log1p(std::exp(w)));
    if (!bias.empty() && (rule.random || rule.weights_include_bias)) w += bias[e];
    if (!rule.random && rule.softmax_over_selected) w = std::exp(w);
    weights.push_back(w);
  }
  if (rule.random) return weights;
  if (rule.softmax_over_selected || rule.normalise) {
    double total = rule.softmax_over_selected ? 0 : static_cast<double>(rule.normalise_epsilon);
    for (const double w : weights) total += w;
    for (double& w : weights) w = w == 0 ? 0 : w / total;
  }
  for (double& w : weights) w *= rule.softmax_over_selected ? 1 : static_cast<double>(rule.scaling);
  return weights;
}

// d (Σ dweights · weights) / d x for every element of x, which is `logits` or `bias`.
inline std::vector<double> weight_gradient(const RoutingRule& rule, std::vector<double>& logits,
                                           std::vector<double>& bias, std::vector<double>& x,
                                           std::span<const std::int32_t> ids,
                                           const std::vector<double>& dweights) {
  constexpr double kStep = 1e-5;
  const auto moved = [&](double& place, double to) {
    const double before = std::exchange(place, to);
    const auto weights = chosen_weights(rule, logits, bias, ids);
    place = before;
    return std::inner_product(weights.begin(), weights.end(), dweights.begin(), 0.0);
  };
  std::vector<double> gradient;
  for (double& v : x) gradient.push_back((moved(v, v + kStep) - moved(v, v - kStep)) / (2 * kStep));
  return gradient;
}

}  // namespace switchyard::reference
