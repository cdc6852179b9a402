// Finds the most probable tokens of a vocabulary without sorting it. Weights are probabilities in whole
// numbers, so that sums do not depend on their order. Scratch memory is kept from call to call, so a thread
// may have one WeighedLogits and one Ranked at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/loss/vocabulary.h"

namespace switchyard {

// Returns a number that grows as the logit falls. Equal logits, both zeros included, have equal numbers; NaN
// has the largest.
inline std::uint32_t rank_of(float logit) {
  const auto bits = std::bit_cast<std::int32_t>(logit + 0.0f);
  // Without branches, as signs of logits are as good as random: negative numbers grow with their bits.
  const auto rank = static_cast<std::uint32_t>(bits ^ (~(bits >> 31) & 0x7fffffff));
  return rank | (0u - static_cast<std::uint32_t>(logit != logit));
}

// Returns the bits of the most probable token's weight: the sum of all weights then has 62 at most.
inline int weight_bits(std::size_t vocab) {
  constexpr int kSumBits = 62;
  return std::min(kMostWeightBits, kSumBits - static_cast<int>(std::bit_width(vocab)));
}

struct RankedToken {
  std::uint32_t rank, id;
  std::uint64_t weight;
};

constexpr int kDigitBits = 11, kFirstShift = 32 - kDigitBits;
constexpr std::uint32_t kDigits = 1u << kDigitBits;
using Sums = std::array<std::uint64_t, kDigits>;  // of weights, by a digit of ranks

// Finds tokens by their place in the order of logits: the most probable one is first, of equal ones the
// smaller id. Nothing is sorted: weights are summed by a digit of their tokens' ranks, and a search continues
// with the next digit among the tokens of the sum that has the wanted token.
class Ranked {
 public:
  struct Found {
    RankedToken token;
    std::uint64_t before;  // sum of the weights before it
  };
  // `tokens` are in the order of ids and must outlive the object.
  explicit Ranked(std::span<const RankedToken> tokens);
  // Returns the first token at which the running sum of weights exceeds `passed` (less than the sum of all).
  Found above(std::uint64_t passed);

 private:
  void take_digit(std::uint32_t digit);

  std::span<const RankedToken> tokens_;
  Sums sums_{};                       // by the first digit
  std::vector<RankedToken>& inside_;  // the tokens of first digit digit_
  std::uint32_t digit_ = kDigits;
};

// Keeps the tokens up to `last`.
void keep_up_to(const RankedToken& last, std::vector<RankedToken>& tokens);

std::uint64_t sum_of(std::span<const RankedToken> tokens);

// Returns the sum of weights that a draw in [0, 1) must exceed.
std::uint64_t passed_of(float uniform, std::uint64_t sum);

// The log of a sum of weights in units of 2^-scale.
inline double log_of_sum(std::uint64_t sum, int scale) {
  return std::log(std::ldexp(static_cast<double>(sum), -scale));
}

// The logits of a vocabulary and their weights: exp((logit - top) * factor), in units of 2^-scale.
class WeighedLogits {
 public:
  explicit WeighedLogits(std::span<const float> logits);

  float top() const { return top_; }
  std::int32_t first_top() const;
  std::uint64_t sum(double factor) const;
  double log_sum() const { return log_of_sum(sum(1), scale_); }
  // Returns the first token, in the order of ids, at which the running sum of weights exceeds the share
  // `uniform` of their sum.
  std::int32_t pick_in_order(double factor, float uniform) const;

  // The next three fill `tokens` with some of the most probable tokens and their weights, in order of ids.
  // All with a logit of at least `least`:
  void from(float least, double factor, std::vector<RankedToken>& tokens) const;
  // `count` of them, or all:
  void first(std::int64_t count, double factor, std::vector<RankedToken>& tokens) const;
  // The token at which the sum exceeds `passed`, all before it, and some after it.
  // `sum` is the sum of all weights.
  void up_to(std::uint64_t passed, std::uint64_t sum, double factor, std::vector<RankedToken>& tokens) const;
  void weigh(std::span<RankedToken> tokens, double factor) const;

  // Returns a logit that is `difference` below the top once multiplied by the factor, or a little lower.
  float below_top(double difference, double factor) const {
    constexpr double kLeastFinite = std::numeric_limits<float>::lowest();
    const double logit = std::max(static_cast<double>(top_) - difference / factor, kLeastFinite);
    return std::nextafter(static_cast<float>(logit), kLeast);
  }

 private:
  static constexpr float kLeast = -std::numeric_limits<float>::infinity();
  float least_of_first(std::int64_t count) const;

  std::span<const float> logits_;
  std::vector<float>& maxima_;  // of blocks
  float top_;
  int scale_;
};

}  // namespace switchyard
