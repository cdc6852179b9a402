// Passes over the logits of a vocabulary, of which a next token is picked (generate/sampling.h). On the
// calling thread; the same bits on every instruction set. What is not a number is less than any logit.
#pragma once

#include <cstdint>
#include <span>

namespace switchyard {

constexpr std::size_t kLogitBlock = 64;
constexpr int kMostWeightBits = 50;

// maxima[i] is the largest of the i-th block of kLogitBlock logits, of which the last may be shorter;
// -infinity where none is a number.
void logit_block_maxima(std::span<const float> logits, std::span<float> maxima);

// weights[i] = exp((logits[i] - top) * factor) * 2^scale, rounded to a whole number (some 1e-14 of it may be
// missing, or too much); 0 for what is not a number. No logit may be above `top`, which itself weighs
// 2^scale, also where it is infinite. factor > 0, 0 <= scale <= kMostWeightBits. `weights` may be empty: only
// the sum is wanted, which is returned. It must be below 2^64.
std::uint64_t logit_weights(std::span<const float> logits, float top, double factor, int scale,
                            std::span<std::uint64_t> weights);

// The places of the logits that are `least` or more, in order; returns how many. `ids` has room for kIdsRoom
// more than there are logits, and what is behind the places may be overwritten.
constexpr std::size_t kIdsRoom = 16;
std::size_t logits_from(std::span<const float> logits, float least, std::span<std::uint32_t> ids);

struct LogitMaximaProblem {
  std::span<const float> logits;
  float* maxima;
};
using LogitMaximaKernel = void(const LogitMaximaProblem& problem);
struct LogitWeightsProblem {
  std::span<const float> logits;
  float top;
  double factor;
  int scale;
  std::uint64_t* weights;  // null: not wanted
};
using LogitWeightsKernel = std::uint64_t(const LogitWeightsProblem& problem);
struct LogitsFromProblem {
  std::span<const float> logits;
  float least;
  std::uint32_t* ids;
};
using LogitsFromKernel = std::size_t(const LogitsFromProblem& problem);

// exp(x) for x in (-45, 0] is 2^k times this polynomial of r = x - k ln 2, highest power first.
constexpr double kExpTerms[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                1.0 / 5040,     1.0 / 720,     1.0 / 120,    1.0 / 24,
                                1.0 / 6,        1.0 / 2,       1.0,          1.0};
constexpr double kLn2High = 0x1.62e42fefa39efp-1, kLn2Low = 0x1.abc9e3b39803fp-56;
constexpr double kLeastExponent = -45;  // exp of less is below 2^-64
constexpr double kRounds = 0x1.8p52;    // added to a number, it leaves it rounded to a whole one
constexpr double kWholes = 0x1p52;  // the same for one that is not negative, which its last bits then hold

namespace ref {
LogitMaximaKernel logit_block_maxima;
LogitWeightsKernel logit_weights;
LogitsFromKernel logits_from;
}  // namespace ref
namespace cpu {
LogitMaximaKernel logit_block_maxima_avx2, logit_block_maxima_avx512;
LogitWeightsKernel logit_weights_avx2, logit_weights_avx512;
LogitsFromKernel logits_from_avx2, logits_from_avx512;
}  // namespace cpu

}  // namespace switchyard
