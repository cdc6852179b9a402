// What a model's logits say of the token that came, and how far they are from another model's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace switchyard {

struct TokenScore {
  float nats = 0;  // minus the log of the probability that the model gave the token
  // Against another model, where there is one:
  float kl = 0;  // nats: KL(against || evaluated), the sum over tokens of p_against log(p_against / p)
  bool same_top = false;  // both find the same token most probable; of equal ones that is the smaller id
};

// `logits` of the whole vocabulary; `against` of the other model, as many, or none. Sums are in float64. What
// is not finite in the logits is not finite in the score either.
TokenScore score_token(std::span<const float> logits, std::int32_t token, std::span<const float> against);

// The scores of a text, token after token.
struct TextScores {
  std::vector<float> nats, kl;  // kl: only against another model
  std::int64_t same_top = 0;    // tokens
};

struct AgainstSummary {
  double mean_kl = 0, median_kl = 0, p99_kl = 0;  // nats a token
  double same_top = 0;                            // share of the tokens
};

struct EvalSummary {
  std::int64_t tokens = 0;    // scored
  double nats_per_token = 0;  // mean
  double perplexity = 0;      // exp of it
  double bits_per_byte = 0;
  std::optional<AgainstSummary> against;
};

// Of one token or more, which stand for `bytes` > 0 bytes of text.
EvalSummary summarise(const TextScores& scores, std::int64_t bytes);

// Where the share `q` of the sorted values lies below: between two neighbours on the straight line between
// them. CHECKs that there is a value.
double quantile(std::span<const float> sorted, double q);

}  // namespace switchyard
