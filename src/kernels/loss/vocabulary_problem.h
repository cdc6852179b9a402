// The implementations behind vocabulary.h, and what they share. Internal to kernels/loss.
#pragma once

#include "kernels/loss/vocabulary.h"

namespace switchyard {

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
