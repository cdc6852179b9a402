// Picks tokens from rows of logits where these are, with the numbers that are wanted of each.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "kernels/sampling/pick_token.h"

namespace switchyard {

constexpr int kMostProbable = 20;
// Ids have so many bits at most.
constexpr int kTokenBits = 22;

// TokenPick asks for a token of a row of logits. The lists that it points to must outlive the calls of
// pack_picks() and pick_tokens().
struct TokenPick {
  std::int64_t row = 0;
  std::int64_t vocab = 0;                    // ids from here on are not there
  const SamplingConfig* config = nullptr;    // its strategy, numbers, penalties and biases
  std::span<const SeenToken> seen = {};      // each token of the text once, where the config uses them
  std::span<const std::uint32_t> bits = {};  // of the tokens that may be picked, 32 a word; empty: all
  float uniform = 0;                         // in [0, 1)
  std::optional<std::int32_t> given = {};    // the token, which is not picked then
  // Log probabilities are wanted, and so many of the most probable tokens (0 to kMostProbable); -1: none.
  int most_probable = -1;
  bool processed = false;  // log probabilities are of processed_logits(), a given token's is 0; not on a GPU
};

// PickedToken answers a TokenPick. Without TokenPick::processed, masks, penalties and biases change
// the token alone, no other number.
struct PickedToken {
  std::int32_t token;
  float logit;       // of the token
  std::int32_t bad;  // the first token whose logit is not finite, or -1
  float bad_logit;
  // The others are 0 without log probabilities. `top` is the largest logit, `sum` that of the weights
  // exp(logit - top) * 2^weight_bits(vocab) (kernels/sampling/likely_tokens.h).
  float top;
  std::int32_t unused;
  std::uint64_t sum;
  struct Probable {
    std::int32_t token;
    float logit;
  } most_probable[kMostProbable];  // of equal logits the smaller id first
};
constexpr std::int64_t kPickedWords = sizeof(PickedToken) / sizeof(std::int32_t);

// Returns the log of the sum of the exponentials of a row's `vocab` logits: a token's log probability is its
// logit minus this. For a pick that wants log probabilities.
double log_sum_of(const PickedToken& picked, std::int64_t vocab);

// The token of each pick is pick_token()'s, to the bit, on every device, once logits of tokens that may not
// be picked are -infinity. On the host a row's logits may change during the call; they are restored.
struct PickTokensArgs {
  TensorView logits;                 // [n,V] f32, without gaps
  std::span<const TokenPick> picks;  // of the host
  TensorView packed_there;           // i32, of pack_picks(), in the logits' memory; a GPU alone reads them
  TensorView out;                    // [picks,kPickedWords] i32: a PickedToken each
};
void pick_tokens(ThreadPool& pool, const PickTokensArgs& args);

// Returns how many rows of logits make enough work for a thread.
std::int64_t rows_a_thread(std::int64_t vocab);

// Returns the picks as a GPU's kernels read them, i32 in the host's memory: one array, so that one copy
// takes them there.
Tensor pack_picks(std::span<const TokenPick> picks);

}  // namespace switchyard
