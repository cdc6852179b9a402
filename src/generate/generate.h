// Token after token from a model: the loop around Generator.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generate/generator.h"
#include "generate/sampling.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

struct GenerateOptions {
  SamplingConfig sampling = {};
  std::int64_t most_tokens = 0;         // new ones, of each row
  bool log_probs = false;               // wanted
  std::int64_t vocab = 0;               // ids from here on are never picked
  std::vector<std::int32_t> ends = {};  // ids after which a row is done
  std::int64_t prompt_piece = 0;        // most tokens of a prompt that are read at once; 0: all
  std::uint32_t seed = 0;  // draws depend on it, the row and the number of tokens before, on nothing else
};

struct GeneratedRow {
  std::vector<std::int32_t> tokens;  // new ones, with the end where it came
  std::vector<double> log_probs;     // of each, where wanted
  bool ended = false;                // by one of `ends`
};

struct Generated {
  std::vector<GeneratedRow> rows;
  double prefill_seconds = 0;  // until the first new token
  double decode_seconds = 0;   // for the others
  std::int64_t steps = 0;      // calls of the model after the prompt
  // With drafts: guesses of a token, and those that the model picked, too.
  std::int64_t drafted = 0, accepted = 0;
};

// The ids that end a text: the tokenizer's end of a document, where it has one, and decode_end_tokens. In
// order, each once. Error(usage) for one that is negative.
std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer);

// Goes on from each row's prompt (one token or more), on a new generator of so many rows. Collective;
// `on_token` sees every token as it comes. Rows that are done cost nothing more. Error(runtime) that names
// the row, the token and the layer where logits are no numbers.
Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t row, std::int32_t token)>& on_token);

// The error of a row whose logits after `before`, the prompt with new tokens, are no numbers: `bad` is the
// first that is none. Collective.
[[noreturn]] void fail_without_numbers(Generator& generator, std::size_t row,
                                       std::vector<std::int32_t> before, std::int32_t bad, float logit);
// "the first output that is not finite is layer 3's", of a layer as of Generator::first_broken_layer.
std::string broken_layer_text(std::int64_t layer, std::int64_t layers);

// The same texts for a generator of a model with prediction layers, the first of which guesses tokens
// (drafting.cc). Near ties between tokens apart: logits of two tokens in one call are rounded otherwise.
Generated generate_with_drafts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                               const GenerateOptions& options,
                               const std::function<void(std::size_t row, std::int32_t token)>& on_token);

// A paragraph from a model in training: `prompt` and `count` tokens after it, whatever ends a document. The
// model sees the last `window` tokens at most: beyond it begins anew with the last half of them. Collective.
std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed);

}  // namespace switchyard
