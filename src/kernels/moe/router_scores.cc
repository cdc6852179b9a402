#include "kernels/moe/router_scores.h"

#include <algorithm>
#include <cmath>

namespace switchyard {

float mean_from_first(std::span<const float> shares, std::span<const float> d) {
  float mean = 0;
  for (std::size_t e = 0; e < d.size(); ++e) mean += shares[e] * (d[e] - d[0]);
  return mean;
}

void router_scores(RouterScore score, std::span<const float> logits, std::span<float> s) {
  std::copy(logits.begin(), logits.end(), s.begin());
  if (score == RouterScore::softmax) {
    const float top = *std::max_element(s.begin(), s.end());
    float sum = 0;
    for (float& v : s) sum += (v = std::exp(v - top));
    for (float& v : s) v /= sum;
  } else if (score == RouterScore::sigmoid) {
    for (float& v : s) v = 1.0f / (1.0f + std::exp(-v));
  } else if (score == RouterScore::sqrt_softplus) {
    for (float& v : s)
      v = v < kVanishingLogit ? std::exp(v / 2)
                              : std::sqrt(std::max(v, 0.0f) + std::log1p(std::exp(-std::abs(v))));
  }
}

void shares_of_logits(RouterScore score, std::span<const float> logits, std::span<float> shares) {
  std::ranges::transform(logits, shares.begin(), [=](float x) { return share_factor(score) * x; });
  router_scores(RouterScore::softmax, shares, shares);
}

void router_scores_backward(RouterScore score, std::span<const float> scores, std::span<const float> dscores,
                            std::span<float> dlogits) {
  const float mean = score == RouterScore::softmax ? mean_from_first(scores, dscores) : 0.0f;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    switch (score) {
      case RouterScore::none:
        dlogits[e] += dscores[e];
        break;
      case RouterScore::softmax:
        dlogits[e] += scores[e] * (dscores[e] - dscores[0] - mean);
        break;
      case RouterScore::sigmoid:
        dlogits[e] += dscores[e] * scores[e] * (1 - scores[e]);
        break;
      case RouterScore::sqrt_softplus:
        // s² = ln(1 + e^x), so ds/dx = (1 - e^(-s²)) / 2s, which is s/2 near 0.
        dlogits[e] +=
            dscores[e] * (scores[e] < kStraightScore ? scores[e] / 2
                                                     : -std::expm1(-scores[e] * scores[e]) / (2 * scores[e]));
        break;
    }
  }
}

}  // namespace switchyard
