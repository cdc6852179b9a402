// Passes over the logits of a vocabulary, from which a next token is picked (generate/sampling.h). They run
// on the calling thread, with the same bits on every instruction set. A NaN is less than any logit.
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
// missing, or too much); 0 for a logit that is a NaN. No logit may be above `top`, which itself weighs
// 2^scale, also where it is infinite. factor > 0, 0 <= scale <= kMostWeightBits. `weights` may be empty: only
// the sum is wanted, which is returned. It must be below 2^64.
std::uint64_t logit_weights(std::span<const float> logits, float top, double factor, int scale,
                            std::span<std::uint64_t> weights);

// The places of the logits that are `least` or more, in order; returns how many. `ids` has room for kIdsRoom
// more than there are logits, and what is behind the places may be overwritten.
constexpr std::size_t kIdsRoom = 16;
std::size_t logits_from(std::span<const float> logits, float least, std::span<std::uint32_t> ids);

}  // namespace switchyard
