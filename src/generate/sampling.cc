#include "generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

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

std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer) {
  std::set<std::int32_t> ends;
  if (tokenizer.eos()) ends.insert(*tokenizer.eos());
  for (const std::int64_t id : config.get_ints("decode_end_tokens")) {
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max())
      fail_usage("[generate] decode_end_tokens: expected ids of 0 or more, got {}", id);
    ends.insert(static_cast<std::int32_t>(id));
  }
  return {ends.begin(), ends.end()};
}

float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens) {
  return rng_uniform(rng_key(seed), (static_cast<std::uint64_t>(text) << 32) + tokens);
}

}  // namespace switchyard
