// The loop around a Generator: token after token, with or without drafts.
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
  std::int64_t most_tokens = 0;         // new ones, of each text
  bool log_probs = false;               // also return the tokens' log probabilities
  std::int64_t vocab = 0;               // ids from here on are never picked
  std::vector<std::int32_t> ends = {};  // ids that end a text
  std::int64_t prompt_chunk = 0;        // most tokens of a prompt in one call of the model; 0: all
  std::uint32_t seed = 0;               // draws depend on it, the text's index and the number of new tokens
};

struct GeneratedText {
  std::vector<std::int32_t> tokens;  // new ones, with the one that ended the text
  std::vector<double> log_probs;     // of each, where wanted
  bool ended = false;                // by one of `ends`
};

struct Generated {
  std::vector<GeneratedText> texts;
  double prefill_seconds = 0;              // until the first new token
  double decode_seconds = 0;               // for the others
  std::int64_t steps = 0;                  // calls of the model after the prompt
  std::int64_t drafted = 0, accepted = 0;  // draft tokens, and those among them that the model picked
};

// Returns the ids that end a text, ascending: the tokenizer's end of a document, where it has one, and
// decode_end_tokens. Error(usage) for a negative id.
std::vector<std::int32_t> end_tokens(const Config& config, const Tokenizer& tokenizer);

// Continues each prompt (one token or more) on a new generator with as many slots. `on_token` gets every
// token as it comes. Texts that have ended cost nothing more. All ranks return the same. Error(runtime) that
// names the text, the token and the layer where logits are not finite. Collective.
Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t text, std::int32_t token)>& on_token);

// Names a layer of Generator::first_broken_layer: "the first output that is not finite is that of layer 3".
std::string broken_layer_text(std::int64_t layer, std::int64_t layers);

// Returns the texts of generate() for a generator whose model has prediction layers, the first of which
// drafts tokens (drafting.cc). Near ties may differ: logits of two tokens in one call are rounded otherwise.
Generated generate_with_drafts(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                               const GenerateOptions& options,
                               const std::function<void(std::size_t text, std::int32_t token)>& on_token);

// Returns `prompt` with `count` tokens after it from a model in training; no token ends the text. The model
// sees at most the last `window` tokens: then it reads the last half of them again. Collective.
std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed);

}  // namespace switchyard
