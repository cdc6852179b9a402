#include "kernels/sampling/pick_token.h"

#include <algorithm>
#include <bit>
#include <cmath>
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

std::int32_t id_of(const Ranked::Found& found) {
  return static_cast<std::int32_t>(found.token.id);
}

// Picks one of the tokens that the strategy leaves, in the order of their logits.
std::int32_t pick_by_rank(const WeighedLogits& weighed, std::span<const float> logits,
                          const SamplingConfig& config, double factor, float uniform) {
  using enum SamplingStrategy;
  std::vector<RankedToken>& tokens = kept_tokens();
  const double p = config.strategy == topk ? 1 : config.nucleus_p;
  const bool is_nucleus = config.strategy == nucleus;
  const bool has_top_k = !is_nucleus && config.top_k < std::ssize(logits);
  if (!has_top_k && p >= 1 && config.min_p > 0) {
    weighed.from(weighed.below_top(-std::log(config.min_p), factor), factor, tokens);
  } else if (has_top_k) {
    weighed.first(config.top_k, factor, tokens);
    if (p < 1) keep_up_to(Ranked(tokens).above(before_share(p, sum_of(tokens))).token, tokens);
  } else {
    const double own_factor = is_nucleus && p < 1 ? 1 : factor;
    const std::uint64_t sum = weighed.sum(own_factor);
    const std::uint64_t passed = p < 1 ? before_share(p, sum) : passed_of(uniform, sum);
    weighed.up_to(passed, sum, own_factor, tokens);
    Ranked ranked(tokens);
    const Ranked::Found last = ranked.above(passed);
    if (p >= 1) return id_of(last);
    if (own_factor == factor && !(config.min_p > 0))
      return id_of(ranked.above(passed_of(uniform, last.before + last.token.weight)));
    keep_up_to(last.token, tokens);
    if (own_factor != factor) weighed.weigh(tokens, factor);
  }
  if (config.min_p > 0) keep_from_part(config.min_p, logits, weighed.top(), factor, tokens);
  return id_of(Ranked(tokens).above(passed_of(uniform, sum_of(tokens))));
}

std::int32_t pick_weighted(const WeighedLogits& weighed, std::span<const float> logits, double min_p,
                           double factor, float uniform) {
  if (!(min_p > 0)) return weighed.pick_in_order(factor, uniform);
  std::vector<RankedToken>& tokens = kept_tokens();
  weighed.from(weighed.below_top(-std::log(min_p), factor), factor, tokens);
  keep_from_part(min_p, logits, weighed.top(), factor, tokens);
  std::uint64_t passed = passed_of(uniform, sum_of(tokens));
  std::size_t at = 0;
  while (passed >= tokens[at].weight) passed -= tokens[at++].weight;
  return static_cast<std::int32_t>(tokens[at].id);
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
  if (config.strategy == SamplingStrategy::greedy || config.temperature == 0) return weighed.first_top();
  // With -infinity alone any token is as good as another.
  if (std::isinf(weighed.top()) && weighed.sum(1) == 0) return 0;
  const double factor = factor_of(config.temperature);
  if (config.strategy == SamplingStrategy::weighted)
    return pick_weighted(weighed, logits, config.min_p, factor, uniform);
  return pick_by_rank(weighed, logits, config, factor, uniform);
}

std::int32_t pick_token(std::span<float> logits, const SamplingConfig& config,
                        std::span<const SeenToken> seen, float uniform) {
  const ChangedLogits changed(logits, config, seen);
  return pick_token(logits, config, uniform);
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
