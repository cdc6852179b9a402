#include "generate/sampling.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/rng.h"

namespace switchyard {
namespace {

SamplingStrategy strategy_of(const std::string& name) {
  if (name == "weighted") return SamplingStrategy::weighted;
  if (name == "nucleus") return SamplingStrategy::nucleus;
  if (name == "topk") return SamplingStrategy::topk;
  return name == "composite" ? SamplingStrategy::composite : SamplingStrategy::greedy;
}

// Largest sum of weights: sums are of whole numbers, so that they do not depend on their order.
constexpr int kSumBits = 62;

// A number for each logit that grows as the logit falls. Equal logits, both zeros included, have equal
// numbers; what is not a number comes last.
std::uint32_t rank_of(float logit) {
  const auto bits = std::bit_cast<std::int32_t>(logit + 0.0f);
  // Without branches, as signs of logits are as good as random: negative numbers grow with their bits.
  const auto rank = static_cast<std::uint32_t>(bits ^ (~(bits >> 31) & 0x7fffffff));
  return rank | (0u - static_cast<std::uint32_t>(logit != logit));
}

// exp(x) * 2^scale as a whole number, for x <= 0; what is not a number gives 0. 2^(x / ln 2) is the product
// of a power of two, a power of 2^(1/128) from a table, and a polynomial: within some 1e-14 of std::exp, and
// several times as fast, which counts with a hundred thousand tokens.
class WholeExponential {
 public:
  explicit WholeExponential(int scale) {
    for (std::size_t j = 0; j < kParts; ++j) {
      const double exponent = static_cast<double>(j) / static_cast<double>(kParts) + scale;
      powers_[j] = std::bit_cast<std::int64_t>(std::exp2(exponent));
    }
  }
  std::uint64_t operator()(double x) const {
    const double parts = x * (static_cast<double>(kParts) * std::numbers::log2e);
    if (!(parts > static_cast<double>(kParts) * -kSumBits)) return 0;
    // Added to this number, another one is rounded to a whole, which its last bits hold.
    constexpr double kRounds = 6755399441055744.0;  // 1.5 * 2^52
    const double rounded = parts + kRounds;
    const std::int64_t whole = std::bit_cast<std::int64_t>(rounded) - std::bit_cast<std::int64_t>(kRounds);
    const double r = (parts - (rounded - kRounds)) * (std::numbers::ln2 / static_cast<double>(kParts));
    const double near_one = 1 + r * (1 + r * (0.5 + r * (1.0 / 6 + r * (1.0 / 24))));
    const std::int64_t power = powers_[static_cast<std::size_t>(whole & 127)] + (whole >> 7) * (1LL << 52);
    return static_cast<std::uint64_t>(
        static_cast<std::int64_t>(near_one * std::bit_cast<double>(power) + 0.5));
  }

 private:
  static constexpr std::size_t kParts = 128;
  std::array<std::int64_t, kParts> powers_;  // bits of 2^(j / 128 + scale)
};

struct Token {
  std::uint32_t rank, id;
  std::uint64_t weight;
};

constexpr int kDigitBits = 11, kFirstShift = 32 - kDigitBits;
constexpr std::uint32_t kDigits = 1u << kDigitBits;
using Sums = std::array<std::uint64_t, kDigits>;  // of weights, by a digit of ranks

// The digit with which the sum is above `passed`, which becomes what is left of it before that digit.
std::uint32_t digit_above(const Sums& sums, std::uint64_t& passed) {
  std::uint32_t digit = 0;
  while (passed >= sums[digit]) passed -= sums[digit++];
  return digit;
}

std::uint64_t sum_of(std::span<const Token> tokens) {
  std::uint64_t sum = 0;
  for (const Token& t : tokens) sum += t.weight;
  return sum;
}

// The token with which, in the order of logits, the sum of weights is above `passed`, which is below the sum
// of all. The most probable token is first, of equal ones the smaller id. Nothing is sorted: weights are
// added up by a digit of their tokens' ranks, and the search goes on, with the next digit, among the tokens
// of the one sum in which the wanted token is. `tokens` are in the order of ids.
Token token_above(std::span<const Token> tokens, std::uint64_t passed) {
  static thread_local std::vector<Token> inside;  // kept: fresh memory costs more than all else here
  inside.clear();
  for (int shift = 32; shift > 0;) {
    shift = std::max(0, shift - kDigitBits);
    const auto digit_of = [&](const Token& t) { return t.rank >> shift & (kDigits - 1); };
    Sums sums{};
    for (const Token& t : tokens) sums[digit_of(t)] += t.weight;
    const std::uint32_t digit = digit_above(sums, passed);
    if (inside.empty())
      std::copy_if(tokens.begin(), tokens.end(), std::back_inserter(inside),
                   [&](const Token& t) { return digit_of(t) == digit; });
    else
      std::erase_if(inside, [&](const Token& t) { return digit_of(t) != digit; });
    tokens = inside;
  }
  while (passed >= tokens.front().weight) {  // equal logits, by id
    passed -= tokens.front().weight;
    tokens = tokens.subspan(1);
  }
  return tokens.front();
}

// Leaves the tokens up to the one of token_above.
void keep_above(std::vector<Token>& tokens, std::uint64_t passed) {
  const Token last = token_above(tokens, passed);
  std::erase_if(
      tokens, [&](const Token& t) { return t.rank > last.rank || (t.rank == last.rank && t.id > last.id); });
}

// What must be passed for the last of the fewest tokens that have the share p of the sum, which is not 0.
std::uint64_t before_share(double p, std::uint64_t sum) {
  const auto wanted = static_cast<std::uint64_t>(std::ceil(p * static_cast<double>(sum)));
  return std::clamp<std::uint64_t>(wanted, 1, sum) - 1;
}

// The logits of a vocabulary and the weights they stand for, in units of 2^-scale.
class Vocabulary {
 public:
  explicit Vocabulary(std::span<const float> logits)
      : logits_(logits),
        top_(*std::max_element(logits.begin(), logits.end())),
        exponential_(kSumBits - static_cast<int>(std::bit_width(logits.size()))) {}

  // exp((logit - top) * factor). The top weighs 1 where it is infinite, too.
  std::uint64_t weight(std::size_t id, double factor) const {
    const float logit = logits_[id];
    return exponential_(logit == top_ ? 0.0 : static_cast<double>(logit - top_) * factor);
  }
  void weigh(std::span<Token> tokens, double temperature) const {
    for (Token& t : tokens) t.weight = weight(t.id, 1 / temperature);
  }
  // Give `tokens` the most probable ones: `count` of them, weighing 1 each, or the fewest whose probabilities
  // reach p, none where no logit is a number.
  void first(std::int64_t count, std::vector<Token>& tokens) const;
  void nucleus(double p, std::vector<Token>& tokens) const;

 private:
  std::uint64_t weigh_all(double temperature) const;

  std::span<const float> logits_;
  float top_;
  WholeExponential exponential_;
  static thread_local std::vector<std::uint64_t> weights_;  // of weigh_all()
};
thread_local std::vector<std::uint64_t> Vocabulary::weights_;

std::uint64_t passed_of(float uniform, std::uint64_t sum) {
  return static_cast<std::uint64_t>(static_cast<double>(uniform) * static_cast<double>(sum));
}

// Weighs all tokens once. The sum.
std::uint64_t Vocabulary::weigh_all(double temperature) const {
  weights_.resize(logits_.size());
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < logits_.size(); ++i) sum += weights_[i] = weight(i, 1 / temperature);
  return sum;
}

void Vocabulary::first(std::int64_t count, std::vector<Token>& tokens) const {
  Sums sums{};
  for (const float logit : logits_) ++sums[rank_of(logit) >> kFirstShift];
  const bool all = count >= std::ssize(logits_);
  const std::uint64_t last = static_cast<std::uint64_t>(count) - 1;
  std::uint64_t passed = last;
  const std::uint32_t digit = all ? kDigits : digit_above(sums, passed);
  tokens.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    const std::uint32_t rank = rank_of(logits_[i]);
    if (rank >> kFirstShift <= digit) tokens.push_back({rank, static_cast<std::uint32_t>(i), 1});
  }
  if (!all) keep_above(tokens, last);
}

// Tokens that weigh less than the share 1 - p of the mean are none of them: all of those together have no
// more than that share of the sum.
void Vocabulary::nucleus(double p, std::vector<Token>& tokens) const {
  const std::uint64_t sum = weigh_all(1);
  const double mean = static_cast<double>(sum) / static_cast<double>(logits_.size());
  const auto least = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(0.999 * (1 - p) * mean));
  tokens.clear();
  for (std::size_t i = 0; i < logits_.size(); ++i) {
    if (weights_[i] >= least)
      tokens.push_back({rank_of(logits_[i]), static_cast<std::uint32_t>(i), weights_[i]});
  }
  if (sum > 0) keep_above(tokens, before_share(p, sum));
}

// Of all tokens, in the order of ids: there is nothing to search for.
std::int32_t pick_of_all(std::span<const float> logits, double temperature, float uniform) {
  const float top = *std::max_element(logits.begin(), logits.end());
  static thread_local std::vector<double> weights;  // kept, as above
  weights.clear();
  double sum = 0;
  for (const float logit : logits) {
    weights.push_back(logit == top ? 1 : std::exp(static_cast<double>(logit - top) / temperature));
    if (!(weights.back() > 0)) weights.back() = 0;  // what is not a number, too
    sum += weights.back();
  }
  double left = static_cast<double>(uniform) * sum;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    last = i;
    left -= weights[i];
    if (left < 0) break;
  }
  return static_cast<std::int32_t>(last);
}

}  // namespace

SamplingConfig sampling_config(const Config& config) {
  SamplingConfig s{strategy_of(config.get_string("decode_sampling_strategy")),
                   config.get_float("decode_sampling_temperature"),
                   config.get_float("decode_sampling_nucleus_p"), config.get_int("decode_sampling_top_k")};
  const bool nucleus = s.strategy == SamplingStrategy::nucleus || s.strategy == SamplingStrategy::composite;
  const bool top_k = s.strategy == SamplingStrategy::topk || s.strategy == SamplingStrategy::composite;
  const std::string& name = config.get_string("decode_sampling_strategy");
  if (nucleus && !(s.nucleus_p > 0 && s.nucleus_p <= 1)) {
    fail_usage(
        "[generate] decode_sampling_strategy={}: expected decode_sampling_nucleus_p above 0 and at most 1, "
        "got {}",
        name, s.nucleus_p);
  }
  if (top_k && s.top_k < 1) {
    fail_usage("[generate] decode_sampling_strategy={}: expected decode_sampling_top_k of 1 or more, got {}",
               name, s.top_k);
  }
  return s;
}

float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens) {
  return rng_uniform(rng_key(seed), (static_cast<std::uint64_t>(text) << 32) + tokens);
}

std::int32_t pick_token(std::span<const float> logits, const SamplingConfig& config, float uniform) {
  using enum SamplingStrategy;
  if (config.strategy == greedy || config.temperature == 0)
    return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  if (config.strategy == weighted) return pick_of_all(logits, config.temperature, uniform);
  const Vocabulary vocabulary(logits);
  static thread_local std::vector<Token> tokens;
  if (config.strategy == nucleus && config.nucleus_p < 1)
    vocabulary.nucleus(config.nucleus_p, tokens);
  else
    vocabulary.first(config.strategy == nucleus ? std::ssize(logits) : config.top_k, tokens);
  vocabulary.weigh(tokens, config.temperature);
  std::uint64_t sum = sum_of(tokens);
  if (sum == 0) return 0;  // no logit is a number
  if (config.strategy == composite && config.nucleus_p < 1) {
    keep_above(tokens, before_share(config.nucleus_p, sum));
    sum = sum_of(tokens);
  }
  return static_cast<std::int32_t>(token_above(tokens, passed_of(uniform, sum)).id);
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - top));
  return static_cast<double>(logits[static_cast<std::size_t>(token)] - top) - std::log(sum);
}

}  // namespace switchyard
