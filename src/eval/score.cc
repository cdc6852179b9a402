#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <numeric>

#include "core/error.h"

namespace switchyard {
namespace {

std::size_t top_of(std::span<const float> logits) {
  return static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double mean(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

TokenScore score_token(std::span<const float> logits, std::int32_t token, std::span<const float> against) {
  CHECK(token >= 0 && static_cast<std::size_t>(token) < logits.size(), "token {} of {}", token,
        logits.size());
  CHECK(against.empty() || against.size() == logits.size(), "{} and {} logits", logits.size(),
        against.size());
  const std::size_t top = top_of(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - logits[top]);
  // Logarithm for the logits minus the largest one, like every logarithm below.
  const double log_sum = std::log(sum);
  TokenScore score;
  score.nats = static_cast<float>(
      log_sum - (static_cast<double>(logits[static_cast<std::size_t>(token)]) - logits[top]));
  if (against.empty()) return score;
  const std::size_t their_top = top_of(against);
  double their_sum = 0, weighted = 0;  // of exp(theirs), and of exp(theirs) (theirs - ours)
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double theirs = static_cast<double>(against[i]) - against[their_top],
                 ours = static_cast<double>(logits[i]) - logits[top];
    const double weight = std::exp(theirs);
    their_sum += weight;
    weighted += weight * (theirs - ours);
  }
  const double kl = weighted / their_sum + log_sum - std::log(their_sum);
  score.kl = static_cast<float>(kl < 0 ? 0 : kl);  // below 0 by rounding alone
  score.same_top = top == their_top;
  return score;
}

EvalSummary summarise(const TextScores& scores, std::int64_t bytes) {
  CHECK(!scores.nats.empty() && bytes > 0, "{} tokens of {} bytes", scores.nats.size(), bytes);
  EvalSummary summary;
  summary.tokens = static_cast<std::int64_t>(scores.nats.size());
  const auto tokens = static_cast<double>(summary.tokens);
  summary.nats_per_token = mean(scores.nats);
  summary.perplexity = std::exp(summary.nats_per_token);
  summary.bits_per_byte = summary.nats_per_token * tokens / std::numbers::ln2 / static_cast<double>(bytes);
  if (scores.kl.empty()) return summary;
  CHECK(scores.kl.size() == scores.nats.size(), "{} divergences of {} tokens", scores.kl.size(),
        scores.nats.size());
  AgainstSummary against;
  against.mean_kl = mean(scores.kl);
  against.same_top = static_cast<double>(scores.same_top) / tokens;
  if (std::isnan(against.mean_kl)) {  // then they have no order
    against.median_kl = against.p99_kl = std::numeric_limits<double>::quiet_NaN();
  } else {
    std::vector<float> sorted = scores.kl;
    std::sort(sorted.begin(), sorted.end());
    against.median_kl = quantile(sorted, 0.5);
    against.p99_kl = quantile(sorted, 0.99);
  }
  summary.against = against;
  return summary;
}

double quantile(std::span<const float> sorted, double q) {
  CHECK(!sorted.empty() && q >= 0 && q <= 1, "the share {} of {} values", q, sorted.size());
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  if (sorted[below] == sorted[above]) return sorted[below];  // infinite ones, too
  return sorted[below] +
         (place - static_cast<double>(below)) * (static_cast<double>(sorted[above]) - sorted[below]);
}

}  // namespace switchyard
