// How a next token is drawn from its logits.
#pragma once

#include <cstdint>
#include <span>

#include "config/config.h"

namespace switchyard {

// As the reference's decode_sampling_strategy:
//   greedy     the largest logit
//   weighted   softmax(logits / temperature)
//   nucleus    that, of the fewest most probable tokens whose probabilities (before the temperature) reach
//              nucleus_p (Holtzman et al. 2020)
//   topk       that, of the top_k most probable tokens
//   composite  of the top_k most probable tokens those that reach nucleus_p with the temperature applied
// Temperature 0 is greedy. Of equal logits the token with the smaller id comes first.
enum class SamplingStrategy { greedy, weighted, nucleus, topk, composite };

struct SamplingConfig {
  SamplingStrategy strategy = SamplingStrategy::greedy;
  double temperature = 1;
  double nucleus_p = -1;  // in (0, 1]
  std::int64_t top_k = 0;
};

// From decode_sampling_*. Error(usage) for a strategy without its number.
SamplingConfig sampling_config(const Config& config);

// The number in [0, 1) that decides on a token: it depends on nothing but the seed, which of the texts of
// that seed this is, and how many tokens it has already.
float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens);

// `uniform` in [0, 1) decides. The logits must not be empty; those of -infinity are never picked, unless all
// are.
std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform);

// log softmax of the logits as they are, of one token.
double log_probability(std::span<const float> logits, std::int32_t token);

}  // namespace switchyard
