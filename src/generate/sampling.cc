#include "generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace switchyard {
namespace {

SamplingStrategy strategy_of(const std::string& name) {
  if (name == "weighted") return SamplingStrategy::weighted;
  if (name == "nucleus") return SamplingStrategy::nucleus;
  if (name == "topk") return SamplingStrategy::topk;
  return name == "composite" ? SamplingStrategy::composite : SamplingStrategy::greedy;
}

std::vector<std::int32_t> ids_of(std::span<const float> logits) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// exp((logit - top) / temperature) of each token of the list.
std::vector<double> weights_of(std::span<const float> logits, std::span<const std::int32_t> tokens, float top,
                               double temperature) {
  std::vector<double> weights;
  weights.reserve(tokens.size());
  for (const std::int32_t t : tokens)
    weights.push_back(std::exp(static_cast<double>(logits[static_cast<std::size_t>(t)] - top) / temperature));
  return weights;
}

double sum_of(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}

// How many of the first weights make the share p of their sum: the one that reaches it counts.
std::size_t nucleus_size(const std::vector<double>& weights, double p) {
  const double wanted = p * sum_of(weights);
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= wanted) return i + 1;
  }
  return weights.size();
}

}  // namespace

SamplingConfig sampling_config(const Config& config) {
  SamplingConfig s{strategy_of(config.get_string("decode_sampling_strategy")),
                   config.get_float("decode_sampling_temperature"),
                   config.get_float("decode_sampling_nucleus_p"), config.get_int("decode_sampling_top_k")};
  const bool nucleus = s.strategy == SamplingStrategy::nucleus || s.strategy == SamplingStrategy::composite;
  const bool top_k = s.strategy == SamplingStrategy::topk || s.strategy == SamplingStrategy::composite;
  const std::string& name = config.get_string("decode_sampling_strategy");
  if (nucleus && !(s.nucleus_p > 0 && s.nucleus_p <= 1)) {
    fail_usage(
        "[generate] decode_sampling_strategy={}: expected decode_sampling_nucleus_p above 0 and at most 1, "
        "got {}",
        name, s.nucleus_p);
  }
  if (top_k && s.top_k < 1) {
    fail_usage("[generate] decode_sampling_strategy={}: expected decode_sampling_top_k of 1 or more, got {}",
               name, s.top_k);
  }
  return s;
}

float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens) {
  return rng_uniform(rng_key(seed), (static_cast<std::uint64_t>(text) << 32) + tokens);
}

std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform) {
  const auto best =
      static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float top = logits[static_cast<std::size_t>(best)];
  using enum SamplingStrategy;
  if (config.strategy == greedy || config.temperature == 0) return best;
  std::vector<std::int32_t> tokens = ids_of(logits);
  if (config.strategy != weighted) {
    const auto before = [&](std::int32_t a, std::int32_t b) {
      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x != y ? x > y : a < b;
    };
    std::size_t kept = tokens.size();
    if (config.strategy != nucleus) kept = std::min(kept, static_cast<std::size_t>(config.top_k));
    std::partial_sort(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(kept), tokens.end(),
                      before);
    tokens.resize(kept);
  }
  if (config.strategy == nucleus)
    tokens.resize(nucleus_size(weights_of(logits, tokens, top, 1), config.nucleus_p));
  std::vector<double> weights = weights_of(logits, tokens, top, config.temperature);
  if (config.strategy == composite) weights.resize(nucleus_size(weights, config.nucleus_p));
  double left = static_cast<double>(uniform) * sum_of(weights);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return tokens[i];
  }
  return tokens[weights.size() - 1];
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  const double sum = sum_of(weights_of(logits, ids_of(logits), top, 1));
  return static_cast<double>(logits[static_cast<std::size_t>(token)] - top) - std::log(sum);
}

}  // namespace switchyard
