// The most probable tokens of a vocabulary, without sorting it. Weights stand for probabilities: whole
// numbers, so that sums of them do not depend on their order. Memory is kept from one call to the next: on a
// thread one WeighedLogits and one Ranked at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace switchyard {

struct RankedToken {
  std::uint32_t rank, id;
  std::uint64_t weight;
};

constexpr int kDigitBits = 11, kFirstShift = 32 - kDigitBits;
constexpr std::uint32_t kDigits = 1u << kDigitBits;
using Sums = std::array<std::uint64_t, kDigits>;  // of weights, by a digit of ranks

// Tokens in the order of logits: the most probable one is first, of equal ones the smaller id. Nothing is
// sorted: weights are added up by a digit of their tokens' ranks, and a search goes on, with the next digit,
// among the tokens of the one sum in which the wanted token is.
class Ranked {
 public:
  struct Found {
    RankedToken token;
    std::uint64_t before;  // weights of those before it
  };
  // In the order of ids. They must outlive it.
  explicit Ranked(std::span<const RankedToken> tokens);
  // The token with which the sum of weights is above `passed`, which is below the sum of all.
  Found above(std::uint64_t passed);

 private:
  void take_digit(std::uint32_t digit);

  std::span<const RankedToken> tokens_;
  Sums sums_{};                       // by the first digit
  std::vector<RankedToken>& inside_;  // those of one first digit
  std::uint32_t digit_ = kDigits;
};

// Leaves the tokens up to the last one.
void keep_up_to(const RankedToken& last, std::vector<RankedToken>& tokens);

std::uint64_t sum_of(std::span<const RankedToken> tokens);

// What must be passed for a draw in [0, 1).
std::uint64_t passed_of(float uniform, std::uint64_t sum);

// The logits of a vocabulary and the weights they stand for: exp((logit - top) * factor), in units of
// 2^-scale.
class WeighedLogits {
 public:
  explicit WeighedLogits(std::span<const float> logits);

  float top() const { return top_; }
  std::int32_t first_top() const;
  std::uint64_t sum(double factor) const;
  double log_sum() const { return std::log(std::ldexp(static_cast<double>(sum(1)), -scale_)); }
  // The token with which, in the order of ids, the sum of weights is above the share `uniform` of all.
  std::int32_t pick_in_order(double factor, float uniform) const;

  // These give `tokens` some of the most probable ones, in the order of ids, with their weights. All that
  // have `least` or more:
  void from(float least, double factor, std::vector<RankedToken>& tokens) const;
  // `count` of them, or all:
  void first(std::int64_t count, double factor, std::vector<RankedToken>& tokens) const;
  // The one that Ranked finds above `passed`, of all tokens, those before it, and some after it. `sum` is
  // that of all.
  void up_to(std::uint64_t passed, std::uint64_t sum, double factor, std::vector<RankedToken>& tokens) const;
  void weigh(std::span<RankedToken> tokens, double factor) const;

  // The logit that is less than the top by so much, after multiplication with the factor, or a little lower.
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
