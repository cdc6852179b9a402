// make_texts() makes several texts side by side until all have ended. `generate`, `verify` and the sample of
// a training call generate() over it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "generate/generator.h"
#include "generate/sampling.h"
#include "generate/token_history.h"
#include "texts/loop.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

struct GenerateOptions {
  SamplingConfig sampling = {};
  std::int64_t most_tokens = 0;         // new ones, of each text
  bool log_probs = false;               // also return the tokens' log probabilities
  std::int64_t vocab = 0;               // ids from here on are never picked
  std::vector<std::int32_t> ends = {};  // ids that end a text
  std::int64_t prompt_chunk = 0;        // most tokens of a prompt in one call of the model; 0: all
  // The model's first prediction layer drafts so many tokens at most after the next one, and the model reads
  // all in one call. Every token is picked from the model's own logits by the draw that it would have without
  // drafts, so texts are the same. Near ties may differ: two tokens in one call are rounded otherwise.
  std::int64_t drafts = 0;
  std::int64_t ngram_drafts = 0;   // so many tokens at most are guessed from the text itself, with as much
  texts::CallCost call_cost = {};  // what drafts are weighed by; by default they cost nothing
  std::uint32_t seed = 0;          // draws depend on it, the text's index and the number of draws before
  std::int64_t draws_before = 0;   // the first new token's
  std::int64_t least_tokens = 0;   // no end before so many new tokens
  std::vector<std::string> stop = {};    // texts end before the first of these; they need the tokenizer
  const Tokenizer* tokenizer = nullptr;  // without one, GeneratedText has tokens alone
  std::shared_ptr<const TokenHistory> history = {};  // what penalties know; null: the prompt
};

struct GeneratedText {
  std::vector<std::int32_t> tokens;  // new ones, with the one that ended the text
  std::vector<double> log_probs;     // of each, where wanted
  // Scores of the prompt's tokens from the second on, where the request wants them, and the most probable
  // tokens in their places.
  std::vector<double> prompt_log_probs;
  std::vector<std::int32_t> most_probable;
  std::string routing;  // a routing record, where the request wants it
  std::string text;     // of the tokens, before a stop text; empty where the loop has no tokenizer
  bool ended = false;   // by an end or a stop text
  std::string problem;  // why the text has failed, in one line; empty: it has not
  std::optional<texts::NotFinite> not_finite;  // the logit by which it has
};

struct GenerateTimes {
  double prefill_seconds = 0;              // until the first new token
  double decode_seconds = 0;               // for the others
  std::int64_t steps = 0;                  // calls of the model after the prompt
  std::int64_t drafted = 0, accepted = 0;  // draft tokens, and those among them that the model picked
  std::int64_t held = 0;  // draft tokens that would have cost more than they save (texts/draft_rule.h)
};

struct Generated : GenerateTimes {
  std::vector<GeneratedText> texts;
};

// Makes the texts of some requests on a loop that may have others, and returns them on all ranks; the inbox,
// the requests and `stop` count on rank 0 alone, where on_token() gets every token as it comes. A text that
// fails ends all; when `stop` is asked for, all end as they are. Collective.
std::vector<GeneratedText> make_texts(
    texts::Loop& loop, Generator& generator, texts::Inbox& inbox, std::vector<texts::TextRequest> requests,
    const std::function<void(std::size_t text, std::int32_t token)>& on_token,
    const std::stop_token& stop = {});

// Continues each prompt (one token or more) on a new generator with as many slots. Chunks of all prompts that
// begin at one position are read in one call. `on_token` gets every token as it comes, on rank 0. Texts that
// have ended cost nothing more. All ranks return the same. Error(runtime) that names the text, the token and
// the layer where logits are not finite. Collective.
Generated generate(Generator& generator, const std::vector<std::vector<std::int32_t>>& prompts,
                   const GenerateOptions& options,
                   const std::function<void(std::size_t text, std::int32_t token)>& on_token);

// Reads a text that has failed again, and names the first layer whose output is not finite: "the first output
// that is not finite is that of layer 3". Collective.
std::string broken_layer_of(Generator& generator, const texts::NotFinite& found,
                            std::vector<std::int32_t> prompt, const GeneratedText& made);

// Returns `prompt` with `count` tokens after it from a model in training; no token ends the text. The model
// sees at most the last `window` tokens: then it reads the last half of them again. The text ends early where
// logits are not finite. Collective.
std::string sample_text(Context& context, const ModelConfig& model, const Parameters& parameters,
                        const Tokenizer& tokenizer, const std::string& prompt, std::int64_t count,
                        std::int64_t window, const SamplingConfig& sampling, std::uint32_t seed);

}  // namespace switchyard
