#include "generate/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/rng.h"
#include "generate/likely_tokens.h"

namespace switchyard {
namespace {

SamplingStrategy strategy_of(const std::string& name) {
  if (name == "weighted") return SamplingStrategy::weighted;
  if (name == "nucleus") return SamplingStrategy::nucleus;
  if (name == "topk") return SamplingStrategy::topk;
  return name == "composite" ? SamplingStrategy::composite : SamplingStrategy::greedy;
}

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
  ChangedLogits(std::span<float> logits, const SamplingConfig& config, const TokenHistory& history)
      : logits_(logits) {
    if (config.uses_history()) {
      for (const TokenHistory::Seen& seen : history.seen())
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

SamplingConfig sampling_config(const Config& config, std::int64_t vocab) {
  SamplingConfig s{strategy_of(config.get_string("decode_sampling_strategy")),
                   config.get_float("decode_sampling_temperature"),
                   config.get_float("decode_sampling_nucleus_p"),
                   config.get_int("decode_sampling_top_k"),
                   config.get_float("decode_sampling_min_p"),
                   config.get_float("decode_repetition_penalty"),
                   config.get_float("decode_presence_penalty"),
                   config.get_float("decode_frequency_penalty")};
  for (const auto& [token, bias] : config.get_numbers_by_id("decode_logit_bias")) {
    if (token >= vocab)
      fail_usage("[generate] decode_logit_bias: token {} is outside the vocabulary of {}", token, vocab);
    if (!(std::abs(bias) <= kMostLogitBias))
      fail_usage("[generate] decode_logit_bias: expected -{} to {} for token {}, got {}", kMostLogitBias,
                 kMostLogitBias, token, bias);
    s.logit_bias.push_back({static_cast<std::int32_t>(token), bias});
  }
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
  const WeighedLogits weighed(logits);
  if (config.strategy == SamplingStrategy::greedy || config.temperature == 0) return weighed.first_top();
  // With -infinity alone any token is as good as another.
  if (std::isinf(weighed.top()) && weighed.sum(1) == 0) return 0;
  constexpr double kLeastFactor = 1e-300, kMostFactor = 1e300;
  const double factor = std::clamp(1 / config.temperature, kLeastFactor, kMostFactor);
  if (config.strategy == SamplingStrategy::weighted)
    return pick_weighted(weighed, logits, config.min_p, factor, uniform);
  return pick_by_rank(weighed, logits, config, factor, uniform);
}

std::int32_t pick_token(std::span<float> logits, const SamplingConfig& config, const TokenHistory& history,
                        float uniform) {
  const ChangedLogits changed(logits, config, history);
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

std::int64_t rows_a_thread(std::int64_t vocab) {
  constexpr std::int64_t kLogits = 16384;
  return std::max<std::int64_t>(1, kLogits / std::max<std::int64_t>(1, vocab));
}

double log_sum_exp(std::span<const float> logits) {
  const WeighedLogits weighed(logits);
  return static_cast<double>(weighed.top()) + weighed.log_sum();
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_sum_exp(logits);
}

}  // namespace switchyard
