// How a next token is drawn from its logits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "config/config.h"
#include "generate/token_history.h"

namespace switchyard {

// As the reference's decode_sampling_strategy:
//   greedy     the largest logit
//   weighted   softmax(logits / temperature)
//   nucleus    that, of the fewest most probable tokens whose probabilities (before the temperature) reach
//              nucleus_p (Holtzman et al. 2020)
//   topk       that, of the top_k most probable tokens
//   composite  of the top_k most probable tokens those that reach nucleus_p with the temperature applied
// Temperature 0 is greedy. Of equal logits the token with the smaller id comes first. What is not a number is
// never picked, nor is what is less probable than 2^-51 of the most probable token (2^-45 with 150,000).
enum class SamplingStrategy { greedy, weighted, nucleus, topk, composite };

struct LogitBias {
  std::int32_t token;
  double bias;
};

// What happens to logits, in this order:
//   repetition_penalty   logits of tokens in the prompt or made since are divided by it, negative ones
//                        multiplied (Keskar et al. 2019)
//   frequency_penalty    is subtracted as often as a token was made
//   presence_penalty     is subtracted once from tokens that were made
//   logit_bias           is added
//   strategy             as above
//   min_p                of the tokens that the strategy leaves, those whose probability, with the
//   temperature
//                        applied, is at least so large a part of the most probable one's
struct SamplingConfig {
  SamplingStrategy strategy = SamplingStrategy::greedy;
  double temperature = 1;
  double nucleus_p = -1;  // in (0, 1]
  std::int64_t top_k = 0;
  double min_p = 0;               // in [0, 1]
  double repetition_penalty = 1;  // above 0
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<LogitBias> logit_bias = {};  // each token once

  bool uses_history() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
};

// Bounds of what may be asked for, of penalties and biases on both sides of 0.
constexpr double kLeastRepetitionPenalty = 0.01, kMostRepetitionPenalty = 100, kMostPenalty = 2;
constexpr double kMostLogitBias = 100;

// From decode_*. Error(usage) for a strategy without its number, and for a bias of a token that is not in the
// vocabulary.
SamplingConfig sampling_config(const Config& config, std::int64_t vocab);

// The number in [0, 1) that decides on a token: it depends on nothing but the seed, which of the texts of
// that seed this is, and how many tokens it has already.
float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens);

// `uniform` in [0, 1) decides. The logits must not be empty; those of -infinity are never picked, unless all
// are. Penalties and biases are left out. The token is the same on every instruction set.
std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform);

// The same with penalties and biases; `history` is that of a text whose config uses one, else it may be
// empty. The logits are changed meanwhile, and are what they were in the end.
std::int32_t pick_token(std::span<float> logits, const SamplingConfig& config, const TokenHistory& history,
                        float uniform);

// The place of the first logit that is infinite or no number. A model with such a logit has broken down:
// nothing can be said of its next token.
std::optional<std::size_t> first_not_finite(std::span<const float> logits);

// How many rows of logits are worth a thread of their own.
std::int64_t rows_a_thread(std::int64_t vocab);

// Log of the sum of exponentials of the logits as they are: a token's log probability is its logit less this.
double log_sum_exp(std::span<const float> logits);

// log softmax of the logits as they are, of one token.
double log_probability(std::span<const float> logits, std::int32_t token);

}  // namespace switchyard
