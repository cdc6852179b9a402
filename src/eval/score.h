// Scores a token by a model's logits, and compares the logits with another model's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace switchyard {

struct TokenScore {
  float nats = 0;  // -log of the probability that the model gave the token
  // Set when another model is given:
  float kl = 0;  // nats: KL(against || evaluated), the sum over tokens of p_against log(p_against / p)
  bool same_top = false;  // both rank the same token first; among equal logits the smaller id wins
};

// `logits` of the whole vocabulary; `against`: as many from the other model, or none. Sums are in float64.
// Logits that are not finite make the score not finite.
TokenScore score_token(std::span<const float> logits, std::int32_t token, std::span<const float> against);

// The scores of a text, token by token.
struct TextScores {
  std::vector<float> nats, kl;  // kl: only with another model
  std::int64_t same_top = 0;    // number of tokens
};

struct AgainstSummary {
  double mean_kl = 0, median_kl = 0, p99_kl = 0;  // nats per token
  double same_top = 0;                            // share of tokens
};

struct EvalSummary {
  std::int64_t tokens = 0;    // scored tokens
  double nats_per_token = 0;  // mean
  double perplexity = 0;      // exp of it
  double bits_per_byte = 0;
  std::optional<AgainstSummary> against;
};

// Summarises the scores of one or more tokens, which represent `bytes` > 0 bytes of text.
EvalSummary summarise(const TextScores& scores, std::int64_t bytes);

// The quantile `q` of sorted values, by linear interpolation
// between neighbouring values. CHECKs that there is a value.
double quantile(std::span<const float> sorted, double q);

}  // namespace switchyard
