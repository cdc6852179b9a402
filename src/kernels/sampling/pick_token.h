// Picks a next token from its logits, on the host (pick_tokens.h: from many rows, on any device).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace switchyard {

// The values of decode_sampling_strategy:
//   greedy     the largest logit
//   weighted   softmax(logits / temperature)
//   nucleus    that, of the fewest most probable tokens whose probabilities (before the temperature) reach
//              nucleus_p (Holtzman et al. 2020)
//   topk       that, of the top_k most probable tokens
//   composite  of the top_k most probable tokens those that reach nucleus_p with the temperature applied
// Temperature 0 is greedy. Of equal logits the token with the smaller id comes first. A NaN is never picked,
// nor is a token less probable than 2^-51 of the most probable one (2^-45 of a vocabulary of 150,000).
enum class SamplingStrategy { greedy, weighted, nucleus, topk, composite };

struct LogitBias {
  std::int32_t token;
  double bias;
};

// The changes to logits, in this order:
//   repetition_penalty   logits of tokens in the prompt or made since are divided by it, negative ones
//                        multiplied (Keskar et al. 2019)
//   frequency_penalty    is subtracted as often as a token was made
//   presence_penalty     is subtracted once from tokens that were made
//   logit_bias           is added
//   strategy             as above
//   min_p                keeps, of the tokens that the strategy leaves, those whose probability, with the
//                        temperature applied, is at least so large a part of the most probable one's
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

// A token of a text, and how often it was generated: its occurrences after the prompt.
struct SeenToken {
  std::int32_t token;
  std::int64_t made;
};

// Picks a token by `uniform` in [0, 1), without penalties and biases. The logits must not be empty; those of
// -infinity are not picked, unless all are. The token is the same on every instruction set.
std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform);

// Picks a token with penalties and biases. `seen` has each token of the text once, or nothing where the
// config does not use it. The logits are changed meanwhile and restored.
std::int32_t pick_token(std::span<float> logits, const SamplingConfig& config,
                        std::span<const SeenToken> seen, float uniform);

// Returns the logits of the draw itself: with penalties, biases and temperature, -infinity for tokens that it
// leaves out. Their softmax is the probability of each token to be picked. While the function runs, the
// logits are changed.
std::vector<float> processed_logits(std::span<float> logits, const SamplingConfig& config,
                                    std::span<const SeenToken> seen);

// Returns the factor of logits of a temperature above 0.
double factor_of(double temperature);

// Returns the index of the first logit that is infinite or NaN: the model gives no next token then.
std::optional<std::size_t> first_not_finite(std::span<const float> logits);

}  // namespace switchyard
