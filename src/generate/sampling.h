// Sampling: draws a next token from its logits.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "kernels/sampling/pick_token.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// Bounds of penalties and biases in requests and keys; the last two on both sides of 0.
constexpr double kLeastRepetitionPenalty = 0.01, kMostRepetitionPenalty = 100, kMostPenalty = 2;
constexpr double kMostLogitBias = 100;

// Reads the decode_* keys. Error(usage) for a strategy without its number, and for a bias of a token that is
// not in the vocabulary.
SamplingConfig sampling_config(const Config& config, std::int64_t vocab);

// Returns the ids that end a text, ascending: the tokenizer's end of a document, where it has one, and
// decode_end_tokens. Error(usage) for a negative id.
std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer);

// Returns the number in [0, 1) that decides on a token. It depends on the seed, the index of the text among
// those of the seed, and the number of tokens that the text has already, and on nothing else.
float draw_of(std::uint32_t seed, std::size_t text, std::size_t tokens);

}  // namespace switchyard
