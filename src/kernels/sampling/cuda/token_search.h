// Looks for tokens by their place in an order without sorting them, as likely_tokens.h does: each has a key,
// weights are summed by a digit of keys, and the search goes on with the next digit.
//
// A key is the rank of the token's logit, above its id: so the most probable token comes first, and of equal
// logits the smaller id. Or it is the id alone.
#pragma once

#include <numbers>

#include "kernels/loss/vocabulary_problem.h"
#include "kernels/sampling/cuda/exact.h"
#include "kernels/sampling/packed_pick.h"

namespace switchyard::gpu {

constexpr int kSearchBits = 11, kBins = 1 << kSearchBits;
constexpr int kSearchThreads = 512, kSearchWarps = kSearchThreads / kWarp;
constexpr std::uint64_t kNoKey = ~std::uint64_t{0}, kIds = (std::uint64_t{1} << kTokenBits) - 1;

// The digits of a key begin at these bits; keys of ids begin with the last two digits.
constexpr int kKeyBits = 32 + kTokenBits, kDigitsOfKey = 5, kFirstDigitOfId = 3;
static_assert(kTokenBits == 2 * kSearchBits);
GPU_FUNCTION int shift_of_digit(int digit) {
  constexpr int kLastOfRank = kTokenBits;  // its digit has 10 bits
  return digit == 0   ? kKeyBits - kSearchBits
         : digit == 1 ? kKeyBits - 2 * kSearchBits
         : digit == 2 ? kLastOfRank
         : digit == 3 ? kSearchBits
                      : 0;
}

// Returns what rank_of() of likely_tokens.h returns.
GPU_FUNCTION std::uint32_t rank_of_logit(float logit) {
  if (logit != logit) return ~std::uint32_t{0};
  const std::uint32_t bits = bits_of(logit == 0 ? 0.0f : logit);
  return bits >> 31 == 0 ? bits ^ 0x7fffffffu : bits;
}

template <int term = 1>
GPU_FUNCTION double add_exp_terms(double sum, double r) {
  if constexpr (term == sizeof(kExpTerms) / sizeof(kExpTerms[0])) {
    return sum;
  } else {
    constexpr double next = kExpTerms[term];
    return add_exp_terms<term + 1>(double_fma(sum, r, next), r);
  }
}

GPU_FUNCTION double scaled_below(float logit, float top, double factor) {
  return logit == top ? 0
                      : double_product(
                            double_difference(static_cast<double>(logit), static_cast<double>(top)), factor);
}

// The weight of ref::logit_weights, operation by operation.
GPU_FUNCTION std::uint64_t weight_of_logit(float logit, float top, double factor, int scale) {
  constexpr double kLog2e = std::numbers::log2e, kFirst = kExpTerms[0];
  const double x = scaled_below(logit, top, factor);
  if (!(x > kLeastExponent)) return 0;
  const double k = double_difference(double_fma(x, kLog2e, kRounds), kRounds);
  const double r = double_fma(k, -kLn2Low, double_fma(k, -kLn2High, x));
  const std::int64_t exponent = static_cast<std::int64_t>(k) + scale + 1023;
  const double whole = double_fma(add_exp_terms(kFirst, r),
                                  double_of_bits(static_cast<std::uint64_t>(exponent) << 52), kWholes);
  return bits_of_double(whole) - bits_of_double(kWholes);
}

// Weighing gives tokens their weights in a search.
struct Weighing {
  bool counts = false;  // every token weighs 1
  bool by_id = false;
  double factor = 1;
  double least = 0;  // tokens with a smaller exponent weigh nothing
  float top = 0;
  int scale = 0;
  std::uint64_t last = kNoKey;  // nor do tokens behind it
};
GPU_FUNCTION std::uint64_t key_in(const Weighing& w, float logit, std::int32_t id) {
  const auto low = static_cast<std::uint64_t>(id);
  return w.by_id ? low : static_cast<std::uint64_t>(rank_of_logit(logit)) << kTokenBits | low;
}
GPU_FUNCTION std::uint64_t weight_in(const Weighing& w, float logit, std::uint64_t key) {
  if (key > w.last || logit != logit) return 0;
  if (w.counts) return 1;
  if (logit != w.top && !(scaled_below(logit, w.top, w.factor) >= w.least)) return 0;
  return weight_of_logit(logit, w.top, w.factor, w.scale);
}

// The sum of weights that the wanted token's running sum exceeds: a function of the sum of all.
struct Passed {
  enum class Of : std::int32_t { count, share, draw } of;
  std::int32_t count;
  double share;
  float uniform;
};
GPU_FUNCTION std::uint64_t passed_of_sum(const Passed& p, std::uint64_t sum) {
  const auto all = static_cast<double>(sum);
  if (p.of == Passed::Of::count) return static_cast<std::uint64_t>(p.count) - 1;
  if (p.of == Passed::Of::draw)
    return static_cast<std::uint64_t>(double_product(static_cast<double>(p.uniform), all));
  const auto wanted = static_cast<std::uint64_t>(::ceil(double_product(p.share, all)));
  return (wanted < 1 ? 1 : wanted > sum ? sum : wanted) - 1;
}

// The tokens among which a search looks: those of a list, or neighbours.
struct Among {
  const float* logits;
  const std::int32_t* ids;  // null: [first, first + count)
  std::int32_t first, count;

  GPU_FUNCTION std::int32_t id(std::int32_t i) const { return ids == nullptr ? first + i : ids[i]; }
};

// SearchMemory is shared by the threads of a block.
struct SearchMemory {
  std::uint64_t* sums;           // [kBins]
  std::uint64_t* sums_of_warps;  // [kSearchWarps]
  std::uint64_t* left;           // [1] of what is passed, before the digit
  std::int32_t* digit;           // [1]; -1: all is passed
};

// Finds the digit at which the running sum exceeds what is passed: passed_of_sum() of the sum of all digits
// for the first digit of a search (`is_first`), *m.left for the others. All threads of the block call it,
// after a barrier behind the last sum.
GPU_FUNCTION void find_digit(const SearchMemory& m, const Passed& how, bool is_first) {
  constexpr int kMine = kBins / kSearchThreads;
  const int thread = thread_index(), lane = thread % kWarp;
  std::uint64_t mine = 0;
  for (int i = 0; i < kMine; ++i) mine += m.sums[thread * kMine + i];
  std::uint64_t up_to = mine;
  for (int by = 1; by < kWarp; by *= 2) {
    const std::uint64_t other = shuffle_up(up_to, by);
    if (lane >= by) up_to += other;
  }
  if (lane == kWarp - 1) m.sums_of_warps[thread / kWarp] = up_to;
  const std::uint64_t left = is_first ? 0 : *m.left;
  barrier();
  std::uint64_t before = up_to - mine, all = 0;
  for (int warp = 0; warp < kSearchWarps; ++warp) {
    if (warp < thread / kWarp) before += m.sums_of_warps[warp];
    all += m.sums_of_warps[warp];
  }
  const std::uint64_t passed = is_first ? (all == 0 ? 0 : passed_of_sum(how, all)) : left;
  if (thread == 0 && passed >= all) *m.digit = -1;
  if (passed >= before && passed < before + mine) {
    int digit = thread * kMine;
    for (; passed >= before + m.sums[digit]; ++digit) before += m.sums[digit];
    *m.digit = digit;
    *m.left = passed - before;
  }
  barrier();
}

// Returns the key of the first token at which the running sum of weights exceeds what is passed; kNoKey where
// that is all. The search begins with digit `digit` among keys whose digits before it are `prefix`. All
// threads of the block call it.
GPU_FUNCTION std::uint64_t find_key(const SearchMemory& m, const Among& among, const Weighing& weighing,
                                    const Passed& how, int digit, std::uint64_t prefix) {
  const int first = weighing.by_id ? kFirstDigitOfId : 0;
  for (; digit < kDigitsOfKey; ++digit) {
    const int shift = shift_of_digit(digit), above = digit == 0 ? kKeyBits : shift_of_digit(digit - 1);
    const std::uint64_t mask = (std::uint64_t{1} << (above - shift)) - 1;
    barrier();
    for (int i = thread_index(); i < kBins; i += kSearchThreads) m.sums[i] = 0;
    barrier();
    for (std::int32_t i = thread_index(); i < among.count; i += kSearchThreads) {
      const std::int32_t id = among.id(i);
      const float logit = among.logits[id];
      const std::uint64_t key = key_in(weighing, logit, id);
      if (key >> above != prefix) continue;
      const std::uint64_t weight = weight_in(weighing, logit, key);
      if (weight != 0) atomic_add_long(m.sums + (key >> shift & mask), weight);
    }
    barrier();
    find_digit(m, how, digit == first);
    if (*m.digit < 0) return kNoKey;
    prefix = prefix << (above - shift) | static_cast<std::uint64_t>(*m.digit);
  }
  return prefix;
}

}  // namespace switchyard::gpu
