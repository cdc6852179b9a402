// TokenPick as a GPU's kernels read it. Internal to kernels/sampling.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/sampling/pick_tokens.h"

namespace switchyard {

// How a token is found.
enum class PickOrder : std::int32_t {
  given,    // it is known
  top,      // the largest logit
  by_id,    // drawn, tokens in the order of ids
  by_rank,  // drawn, the most probable token first
};

// All picks come first in the array, then what they point to, at multiples of 8 bytes.
struct PackedPick {
  double factor;        // of logits, of the temperature
  double share;         // of the weights of the most probable tokens that are kept; 1: all
  double share_factor;  // of logits in those weights
  double least;         // (logit - top) * factor of tokens that are kept; -infinity: all
  double repetition_penalty, frequency_penalty, presence_penalty;
  std::int64_t row;
  std::int32_t vocab, weight_bits;
  PickOrder order;
  std::int32_t given;
  std::int32_t top_k;  // the most probable tokens that are kept; 0: all
  float uniform;
  std::int32_t most_probable;  // -1: no log probabilities
  std::int32_t changes;        // whether there is a mask, a penalty or a bias
  // Places in the array in units of 8 bytes, and how many.
  std::int32_t bits_at, bits;    // words of 32 bits; 0: no mask
  std::int32_t seen_at, seen;    // PackedSeen
  std::int32_t bias_at, biases;  // PackedBias
};

struct PackedSeen {
  std::int32_t token, made;
};

struct PackedBias {
  double bias;
  std::int64_t token;
};

namespace gpu {
void pick_tokens(const PickTokensArgs& args);
}  // namespace gpu

}  // namespace switchyard
