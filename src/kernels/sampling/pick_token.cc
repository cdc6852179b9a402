#include "kernels/sampling/pick_token.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/sampling/likely_tokens.h"

namespace switchyard {
namespace {

// The sum of weights before the last of the fewest tokens that have the share p of the sum (not 0).
std::uint64_t before_share(double p, std::uint64_t sum) {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(p * static_cast<double>(sum)));
  return std::clamp<std::uint64_t>(wanted, 1, sum) - 1;
}

std::vector<RankedToken>& kept_tokens() {
  static thread_local std::vector<RankedToken> tokens;  // fresh memory costs more than all else here
  return tokens;
}

// Leaves tokens of which each weighs at least so large a part of the top one.
void keep_from_part(double part, std::span<const float> logits, float top, double factor,
                    std::vector<RankedToken>& tokens) {
  const double least = std::log(part);
  std::erase_if(tokens, [&](const RankedToken& t) {
    const float logit = logits[t.id];
    return logit != top && !((static_cast<double>(logit) - static_cast<double>(top)) * factor >= least);
  });
}

bool has_top_k(const SamplingConfig& config, std::span<const float> logits) {
  using enum SamplingStrategy;
  return (config.strategy == topk || config.strategy == composite) && config.top_k < std::ssize(logits);
}

// The share of the weights that the kept tokens have; 1: all tokens are kept.
double share_of(const SamplingConfig& config) {
  using enum SamplingStrategy;
  return config.strategy == nucleus || config.strategy == composite ? config.nucleus_p : 1;
}

// Leaves the tokens of which the strategy draws, with their weights in the draw, in the order of ids.
void keep_tokens(const WeighedLogits& weighed, std::span<const float> logits, const SamplingConfig& config,
                 double factor, std::vector<RankedToken>& tokens) {
  const double p = share_of(config);
  if (has_top_k(config, logits)) {
    weighed.first(config.top_k, factor, tokens);
    if (p < 1) keep_up_to(Ranked(tokens).above(before_share(p, sum_of(tokens))).token, tokens);
  } else if (p < 1) {
    const double own_factor = config.strategy == SamplingStrategy::nucleus ? 1 : factor;
    const std::uint64_t sum = weighed.sum(own_factor), passed = before_share(p, sum);
    weighed.up_to(passed, sum, own_factor, tokens);
    keep_up_to(Ranked(tokens).above(passed).token, tokens);
    if (own_factor != factor) weighed.weigh(tokens, factor);
  } else {
    weighed.from(weighed.below_top(-std::log(config.min_p), factor), factor, tokens);
  }
  if (config.min_p > 0) keep_from_part(config.min_p, logits, weighed.top(), factor, tokens);
}

// Picks one of the tokens that the strategy leaves, in the order of their logits.
std::int32_t pick_by_rank(const WeighedLogits& weighed, std::span<const float> logits,
                          const SamplingConfig& config, double factor, float uniform) {
  std::vector<RankedToken>& tokens = kept_tokens();
  std::uint64_t passed = 0;
  if (!has_top_k(config, logits) && share_of(config) >= 1 && !(config.min_p > 0)) {
    const std::uint64_t sum = weighed.sum(factor);
    passed = passed_of(uniform, sum);
    weighed.up_to(passed, sum, factor, tokens);
  } else {
    keep_tokens(weighed, logits, config, factor, tokens);
    passed = passed_of(uniform, sum_of(tokens));
  }
  return static_cast<std::int32_t>(Ranked(tokens).above(passed).token.id);
}

std::int32_t pick_weighted(const WeighedLogits& weighed, std::span<const float> logits,
                           const SamplingConfig& config, double factor, float uniform) {
  if (!(config.min_p > 0)) return weighed.pick_in_order(factor, uniform);
  std::vector<RankedToken>& tokens = kept_tokens();
  keep_tokens(weighed, logits, config, factor, tokens);
  std::uint64_t passed = passed_of(uniform, sum_of(tokens));
  std::size_t at = 0;
  while (passed >= tokens[at].weight) passed -= tokens[at++].weight;
  return static_cast<std::int32_t>(tokens[at].id);
}

// Returns the token that every draw picks, if there is one. With -infinity alone any is as good as another.
std::optional<std::int32_t> certain_token(const WeighedLogits& weighed, const SamplingConfig& config) {
  if (config.strategy == SamplingStrategy::greedy || config.temperature == 0) return weighed.first_top();
  if (std::isinf(weighed.top()) && weighed.sum(1) == 0) return 0;
  return std::nullopt;
}

// Logits with penalties and biases, until its end.
class ChangedLogits {
 public:
  ChangedLogits(std::span<float> logits, const SamplingConfig& config, std::span<const SeenToken> seen_tokens)
      : logits_(logits) {
    if (config.uses_history()) {
      for (const SeenToken& seen : seen_tokens)
        change(seen.token, [&](double logit) {
          logit = logit < 0 ? logit * config.repetition_penalty : logit / config.repetition_penalty;
          if (seen.made == 0) return logit;
          return logit - static_cast<double>(seen.made) * config.frequency_penalty - config.presence_penalty;
        });
    }
    for (const LogitBias& bias : config.logit_bias)
      change(bias.token, [&](double logit) { return logit + bias.bias; });
  }
  ~ChangedLogits() {
    for (auto was = before_.rbegin(); was != before_.rend(); ++was) logits_[was->first] = was->second;
  }
  ChangedLogits(const ChangedLogits&) = delete;
  ChangedLogits& operator=(const ChangedLogits&) = delete;

 private:
  // Prompts may have tokens of the model that the tokenizer does not have, and that are not picked.
  template <typename Change>
  void change(std::int32_t token, const Change& changed) {
    const auto at = static_cast<std::size_t>(token);
    if (at >= logits_.size()) return;
    before_.emplace_back(at, logits_[at]);
    logits_[at] = static_cast<float>(changed(static_cast<double>(logits_[at])));
  }

  std::span<float> logits_;
  std::vector<std::pair<std::size_t, float>> before_;
};

}  // namespace

double factor_of(double temperature) {
  constexpr double kLeastFactor = 1e-300, kMostFactor = 1e300;
  return std::clamp(1 / temperature, kLeastFactor, kMostFactor);
}

std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform) {
  const WeighedLogits weighed(logits);
  if (const std::optional<std::int32_t> token = certain_token(weighed, config)) return *token;
  const double factor = factor_of(config.temperature);
  if (config.strategy == SamplingStrategy::weighted)
    return pick_weighted(weighed, logits, config, factor, uniform);
  return pick_by_rank(weighed, logits, config, factor, uniform);
}

std::int32_t pick_token(std::span<float> logits, const SamplingConfig& config,
                        std::span<const SeenToken> seen, float uniform) {
  const ChangedLogits changed(logits, config, seen);
  return pick_token(logits, config, uniform);
}

std::vector<float> processed_logits(std::span<float> logits, const SamplingConfig& config,
                                    std::span<const SeenToken> seen) {
  const ChangedLogits changed(logits, config, seen);
  const WeighedLogits weighed(logits);
  std::vector<float> processed(logits.size(), -std::numeric_limits<float>::infinity());
  if (const std::optional<std::int32_t> token = certain_token(weighed, config)) {
    processed[static_cast<std::size_t>(*token)] = 0;
    return processed;
  }
  const double factor = factor_of(config.temperature), top = static_cast<double>(weighed.top());
  std::vector<RankedToken>& tokens = kept_tokens();
  keep_tokens(weighed, logits, config, factor, tokens);
  for (const RankedToken& kept : tokens)
    processed[kept.id] = static_cast<float>((static_cast<double>(logits[kept.id]) - top) * factor);
  return processed;
}

std::optional<std::size_t> first_not_finite(std::span<const float> logits) {
  constexpr std::uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
  std::uint32_t most = 0;  // of bits without the sign, which grow with the magnitude: without branches
  for (const float logit : logits) most = std::max(most, std::bit_cast<std::uint32_t>(logit) & ~kSign);
  if (most < kInfinity) return std::nullopt;
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  return static_cast<std::size_t>(bad - logits.begin());
}

}  // namespace switchyard
