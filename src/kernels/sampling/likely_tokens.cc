#include "kernels/sampling/likely_tokens.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>

#include "kernels/loss/vocabulary.h"

namespace switchyard {
namespace {

// Returns the logit whose rank_of() is `rank`.
float logit_of(std::uint32_t rank) {
  return std::bit_cast<float>(rank >> 31 == 0 ? rank ^ 0x7fffffffu : rank);
}

// Memory that each thread keeps: fresh memory would cost more than the search.
struct KeptMemory {
  std::vector<float> maxima, sorted_maxima, some_logits;
  std::vector<std::uint64_t> weights;
  std::vector<std::uint32_t> ids;
  std::vector<RankedToken> inside, narrower;
};
KeptMemory& kept() {
  static thread_local KeptMemory memory;
  return memory;
}

// Returns the first digit whose cumulative sum exceeds `passed`; subtracts the sums of the digits before it.
std::uint32_t digit_above(const Sums& sums, std::uint64_t& passed) {
  std::uint32_t digit = 0;
  while (passed >= sums[digit]) passed -= sums[digit++];
  return digit;
}

}  // namespace

Ranked::Ranked(std::span<const RankedToken> tokens) : tokens_(tokens), inside_(kept().inside) {
  for (const RankedToken& t : tokens) sums_[t.rank >> kFirstShift] += t.weight;
}

void Ranked::take_digit(std::uint32_t digit) {
  if (digit == digit_) return;
  digit_ = digit;
  inside_.clear();
  std::copy_if(tokens_.begin(), tokens_.end(), std::back_inserter(inside_),
               [&](const RankedToken& t) { return t.rank >> kFirstShift == digit; });
}

Ranked::Found Ranked::above(std::uint64_t passed) {
  std::uint64_t left = passed;
  take_digit(digit_above(sums_, left));
  std::span<const RankedToken> among = inside_;
  std::vector<RankedToken>& narrower = kept().narrower;
  const auto differ = [&] {
    return std::any_of(among.begin(), among.end(),
                       [&](const RankedToken& t) { return t.rank != among[0].rank; });
  };
  for (int shift = kFirstShift; shift > 0 && differ();) {
    shift = std::max(0, shift - kDigitBits);
    const auto digit_of = [&](const RankedToken& t) { return t.rank >> shift & (kDigits - 1); };
    Sums sums{};
    for (const RankedToken& t : among) sums[digit_of(t)] += t.weight;
    const std::uint32_t digit = digit_above(sums, left);
    const auto is_other = [&](const RankedToken& t) { return digit_of(t) != digit; };
    if (among.data() == inside_.data()) {
      narrower.clear();
      std::remove_copy_if(among.begin(), among.end(), std::back_inserter(narrower), is_other);
    } else {
      std::erase_if(narrower, is_other);
    }
    among = narrower;
  }
  while (left >= among.front().weight) {  // equal logits, by id
    left -= among.front().weight;
    among = among.subspan(1);
  }
  return {among.front(), passed - left};
}

void keep_up_to(const RankedToken& last, std::vector<RankedToken>& tokens) {
  std::erase_if(tokens, [&](const RankedToken& t) {
    return t.rank > last.rank || (t.rank == last.rank && t.id > last.id);
  });
}

std::uint64_t sum_of(std::span<const RankedToken> tokens) {
  std::uint64_t sum = 0;
  for (const RankedToken& t : tokens) sum += t.weight;
  return sum;
}

std::uint64_t passed_of(float uniform, std::uint64_t sum) {
  return static_cast<std::uint64_t>(static_cast<double>(uniform) * static_cast<double>(sum));
}

WeighedLogits::WeighedLogits(std::span<const float> logits) : logits_(logits), maxima_(kept().maxima) {
  maxima_.resize((logits.size() + kLogitBlock - 1) / kLogitBlock);
  logit_block_maxima(logits, maxima_);
  // Adding 0 turns -0 into 0: which of the two the maximum is depends on the instruction set.
  top_ = *std::max_element(maxima_.begin(), maxima_.end()) + 0.0f;
  scale_ = weight_bits(logits.size());
}

std::uint64_t WeighedLogits::sum(double factor) const {
  return logit_weights(logits_, top_, factor, scale_, {});
}

std::int32_t WeighedLogits::first_top() const {
  const auto block = std::find(maxima_.begin(), maxima_.end(), top_) - maxima_.begin();
  const auto begin = logits_.begin() + block * static_cast<std::ptrdiff_t>(kLogitBlock);
  const auto top = std::find(begin, logits_.end(), top_);
  return top == logits_.end() ? 0
                              : static_cast<std::int32_t>(top - logits_.begin());  // 0: no logit is a number
}

std::int32_t WeighedLogits::pick_in_order(double factor, float uniform) const {
  constexpr std::size_t kPart = 1024;
  std::vector<std::uint64_t>& weights = kept().weights;
  weights.clear();
  std::uint64_t sum = 0;
  for (std::size_t begin = 0; begin < logits_.size(); begin += kPart) {
    const auto part = logits_.subspan(begin, std::min(kPart, logits_.size() - begin));
    weights.push_back(logit_weights(part, top_, factor, scale_, {}));
    sum += weights.back();
  }
  if (sum == 0) return 0;
  std::uint64_t passed = passed_of(uniform, sum);
  std::size_t at = 0;
  while (passed >= weights[at]) passed -= weights[at++];
  at *= kPart;
  const auto part = logits_.subspan(at, std::min(kPart, logits_.size() - at));
  weights.resize(part.size());
  logit_weights(part, top_, factor, scale_, weights);
  for (const std::uint64_t weight : weights) {
    if (passed < weight) break;
    passed -= weight;
    ++at;
  }
  return static_cast<std::int32_t>(at);
}

void WeighedLogits::weigh(std::span<RankedToken> tokens, double factor) const {
  KeptMemory& memory = kept();
  memory.some_logits.resize(tokens.size());
  memory.weights.resize(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) memory.some_logits[i] = logits_[tokens[i].id];
  logit_weights(memory.some_logits, top_, factor, scale_, memory.weights);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i].weight = memory.weights[i];
}

void WeighedLogits::from(float least, double factor, std::vector<RankedToken>& tokens) const {
  KeptMemory& memory = kept();
  memory.ids.resize(logits_.size() + kIdsRoom);
  const std::size_t count = logits_from(logits_, least, memory.ids);
  memory.some_logits.resize(count);
  memory.weights.resize(count);
  for (std::size_t i = 0; i < count; ++i) memory.some_logits[i] = logits_[memory.ids[i]];
  logit_weights(memory.some_logits, top_, factor, scale_, memory.weights);
  tokens.resize(count);
  for (std::size_t i = 0; i < count; ++i)
    tokens[i] = {rank_of(memory.some_logits[i]), memory.ids[i], memory.weights[i]};
}

// Returns a number that at least `count` logits reach, and few others. The count-th largest maximum of the
// blocks is one, since as many blocks have a logit that large. If there are too few blocks, logits are
// counted by the first digit of their ranks.
float WeighedLogits::least_of_first(std::int64_t count) const {
  if (count <= std::ssize(maxima_) / 2) {
    std::vector<float>& sorted = kept().sorted_maxima;
    sorted.assign(maxima_.begin(), maxima_.end());
    const auto last = sorted.begin() + (count - 1);
    std::nth_element(sorted.begin(), last, sorted.end(), std::greater<>());
    return *last;
  }
  Sums sums{};
  for (const float logit : logits_) ++sums[rank_of(logit) >> kFirstShift];
  auto passed = static_cast<std::uint64_t>(count) - 1;
  const std::uint32_t digit = digit_above(sums, passed);
  const float least = logit_of((digit << kFirstShift) + (1u << kFirstShift) - 1);
  return std::isnan(least) ? kLeast : least;
}

void WeighedLogits::first(std::int64_t count, double factor, std::vector<RankedToken>& tokens) const {
  from(count >= std::ssize(logits_) ? kLeast : least_of_first(count), factor, tokens);
  if (std::ssize(tokens) <= count) return;
  for (RankedToken& token : tokens) token.weight = 1;
  keep_up_to(Ranked(tokens).above(static_cast<std::uint64_t>(count) - 1).token, tokens);
  weigh(tokens, factor);
}

// Leaves out tokens that weigh less than the mean of the sum that remains. Together they weigh less than that
// sum, so the sum exceeds `passed` before the first of them.
void WeighedLogits::up_to(std::uint64_t passed, std::uint64_t sum, double factor,
                          std::vector<RankedToken>& tokens) const {
  // The margin allows for rounded weights, and for errors of exponentials and logarithms.
  constexpr double kMargin = 0.98, kLeastMean = 64, kLeastWeight = 0.25;
  const double mean = kMargin * static_cast<double>(sum - passed) / static_cast<double>(logits_.size());
  const double least = mean < kLeastMean ? kLeastWeight : mean;
  from(below_top(std::log(std::ldexp(1.0, scale_) / least), factor), factor, tokens);
}

}  // namespace switchyard
