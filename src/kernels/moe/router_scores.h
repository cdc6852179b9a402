// Scores one token's experts on the host, for the kernels that choose experts and balance their load. fp32
// throughout, in the order of the experts.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

enum class RouterScore : std::uint8_t { none, softmax, sigmoid, sqrt_softplus };

// True where an expert's score depends on its own logit alone and is not below 0. Such scores do not sum to
// 1, so weights are divided by their sum.
constexpr bool scores_each_alone(RouterScore score) {
  return score == RouterScore::sigmoid || score == RouterScore::sqrt_softplus;
}

// Scores vanish in float32: of logits below about -88 (sigmoid), where e^logit does. What is divided by such
// scores is found from the logits instead, so that it is finite for every finite logit.
//
// Below this logit e^logit has no whole float32, and √ln(1 + e^logit) is e^(logit/2).
constexpr float kVanishingLogit = -87.0f;
// Below this sum, scores that are each alone no longer tell their shares: see shares_of_logits().
constexpr float kVanishingSum = 1e-30f;
// Below this score, √ln(1 + e^logit) has half of itself as its slope.
constexpr float kStraightScore = 1e-15f;

// The factor of logits of which a softmax is the shares of scores that are each alone, where all of them
// vanish: ln sigmoid(x) is x there, and ln √ln(1 + e^x) half of it.
constexpr float share_factor(RouterScore score) {
  return score == RouterScore::sqrt_softplus ? 0.5f : 1.0f;
}

// scores[e] of logits[e]: the logits, or softmax, sigmoid or √ln(1 + e^logit) of them.
// The two may be the same memory.
void router_scores(RouterScore score, std::span<const float> logits, std::span<float> scores);

// Shares s/Σs of the scores of these logits, which are each alone and vanish. May be the same memory.
void shares_of_logits(RouterScore score, std::span<const float> logits, std::span<float> shares);

// dlogits of router_scores, added to `dlogits`.
void router_scores_backward(RouterScore score, std::span<const float> scores, std::span<const float> dscores,
                            std::span<float> dlogits);

// Σ shares[e]·(d[e] - d[0]): the mean of d under shares of sum 1, less d[0]. d[e] - d[0] less this is d[e]'s
// distance from the mean, exactly 0 where all d are equal and without the rounding of their common part.
float mean_from_first(std::span<const float> shares, std::span<const float> d);

}  // namespace switchyard
