#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/loss/vocabulary_problem.h"

namespace switchyard::ref {
namespace {

std::uint64_t weight_of(float logit, const LogitWeightsProblem& p) {
  const double x = logit == p.top ? 0 : (static_cast<double>(logit) - static_cast<double>(p.top)) * p.factor;
  if (!(x > kLeastExponent)) return 0;
  const double k = std::fma(x, std::numbers::log2e, kRounds) - kRounds;
  const double r = std::fma(k, -kLn2Low, std::fma(k, -kLn2High, x));
  double near_one = kExpTerms[0];
  for (const double term : std::span(kExpTerms).subspan(1)) near_one = std::fma(near_one, r, term);
  const auto exponent = static_cast<std::int64_t>(k) + p.scale + 1023;
  const double whole = std::fma(near_one, std::bit_cast<double>(exponent << 52), kWholes);
  return std::bit_cast<std::uint64_t>(whole) - std::bit_cast<std::uint64_t>(kWholes);
}

}  // namespace

void logit_block_maxima(const LogitMaximaProblem& p) {
  for (std::size_t begin = 0; begin < p.logits.size(); begin += kLogitBlock) {
    float most = -std::numeric_limits<float>::infinity();
    for (const float logit : p.logits.subspan(begin, std::min(kLogitBlock, p.logits.size() - begin)))
      most = logit > most ? logit : most;
    p.maxima[begin / kLogitBlock] = most;
  }
}

std::uint64_t logit_weights(const LogitWeightsProblem& p) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    const std::uint64_t weight = weight_of(p.logits[i], p);
    if (p.weights != nullptr) p.weights[i] = weight;
    sum += weight;
  }
  return sum;
}

std::size_t logits_from(const LogitsFromProblem& p) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < p.logits.size(); ++i) {
    if (p.logits[i] >= p.least) p.ids[count++] = static_cast<std::uint32_t>(i);
  }
  return count;
}

}  // namespace switchyard::ref
