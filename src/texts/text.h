// TextRequest is what a client wants; Pieces carry the text from the model's thread to the client's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/answer_parser.h"
#include "generate/sampling.h"
#include "generate/token_history.h"
#include "grammar/grammar.h"
#include "texts/cache_domain.h"
#include "texts/text_adapter.h"

namespace switchyard::texts {

// How the answer of a chat is read out of the model's text.
struct AnswerForm {
  chat::Format format = chat::Format::none;
  chat::Json tools = nullptr;          // the request's, for the types of their arguments
  bool opens_reasoning = false;        // the prompt ends within reasoning
  bool keeps_reasoning = false;        // reasoning stays in the content, with its markers
  bool one_call = false;               // the answer ends after its first call
  std::vector<std::string> stop = {};  // the answer ends before the first of these in its content
  std::optional<std::int64_t> most_reasoning = {};  // tokens, after which the end of reasoning is forced
  std::vector<std::int32_t> reasoning_end = {};     // the tokens to force then
};

struct TextRequest {
  std::vector<std::int32_t> prompt;  // one token or more
  std::int64_t most_tokens = 0;      // new ones; 0: only the prompt is of interest
  SamplingConfig sampling = {};
  std::uint32_t seed = 0;         // a draw depends on the seed, the choice and the number of draws before it
  std::size_t choice = 0;         // the text's index among those of one request
  std::int64_t draws_before = 0;  // the first token's
  // The tokens that penalties count before the first new one; null: the prompt.
  std::shared_ptr<const TokenHistory> history = {};
  std::vector<std::string> stop = {};   // the text ends before the first of these
  std::optional<int> log_probs = {};    // return log probabilities, and those of so many most probable tokens
  bool processed_log_probs = false;     // they are of the draw (processed_logits()), not of the model
  bool ignore_end = false;              // goes on after the ids that end every text
  bool scores_prompt = false;           // return log probabilities of the prompt's tokens too,
  std::size_t scores_from = 0;          // from this one on; those before it are read without logits
  std::vector<std::int32_t> ends = {};  // ids that end this text, beside those that end every text
  std::int64_t least_tokens = 0;        // no end before so many new tokens
  std::shared_ptr<const AnswerForm> answer = {};         // of a chat: pieces have changes, no text
  std::shared_ptr<const grammar::Grammar> grammar = {};  // that the text keeps
  std::string grammar_after = {};        // from behind this text on; empty: from the beginning
  bool grammar_after_reasoning = false;  // that text ends reasoning; else one within reasoning is none
  // The token that may come first although the grammar does not allow it, and begins reasoning.
  std::optional<std::int32_t> reasoning_begin = {};
  CacheDomain domain = {};
  std::shared_ptr<const TextAdapter> adapter = {};          // that reads and makes the text; null: none
  bool returns_token_ids = false, returns_routing = false;  // in the answer
};

// `failed`: the model's logits are not finite. `aborted`: other weights came, and running texts were to end
// (POST /v1/weights).
enum class Finish { stop, length, abandoned, failed, aborted };
inline bool is_cut(std::optional<Finish> how) {
  return how == Finish::length || how == Finish::aborted;
}

struct TokenLogProb {
  std::int32_t token = -1;
  std::string text;
  std::optional<double> log_prob;  // none for a prompt's first token
  std::vector<std::pair<std::string, double>> most_probable;
  std::vector<std::int32_t> most_probable_tokens;  // their ids
  std::int64_t offset;  // whole characters before the token, in the prompt or in the new text
};

// Returns the number of code points.
std::int64_t characters_in(const std::string& utf8);

// A logit that is no number.
struct NotFinite {
  std::int64_t tokens_before;  // of the text
  std::int32_t token;
  float logit;
  std::size_t slot;  // of the text
};

// The next piece of one text.
struct Piece {
  std::size_t choice = 0;
  std::string text = {};
  std::int64_t tokens = 0;
  std::vector<TokenLogProb> log_probs = {};  // where the request wants them
  std::optional<Finish> finish = {};
  bool of_prompt = false;                    // the log probabilities are of the prompt's tokens
  std::string problem = {};                  // of a text that failed, in one line
  std::optional<NotFinite> not_finite = {};  // the logits of a text that failed so
  // Prompt tokens that were cached and so not read again. Told once, with the text's first token.
  std::int64_t cached_tokens = 0;
  std::vector<std::int32_t> made = {};   // the tokens, but for one that ends a chat's answer
  std::optional<std::int32_t> end = {};  // that one
  std::string routing = {};  // with the finish: the text's routing record, where the request wants it
  // The fields below are of a chat's answer.
  std::vector<chat::Delta> deltas = {};  // instead of `text`
  std::int64_t reasoning_tokens = 0;     // of `tokens`
  std::string stop_word = {};            // the stop text that ended the answer
};

// The pieces of all texts of one request. Any thread may call any function.
class Pieces {
 public:
  void add(Piece piece);
  // Returns the pieces that have come. Waits up to `seconds` for the first.
  std::vector<Piece> take(double seconds);
  // Sets what add() calls behind each piece: it must be short, and call nothing of these pieces. After
  // on_added({}) has returned, it is not called any more.
  void on_added(std::function<void()> call);
  // Says that nobody wants more pieces.
  void abandon();
  bool abandoned() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable came_;
  std::vector<Piece> pieces_;
  std::function<void()> on_added_;
  bool abandoned_ = false;
};

struct WantedText {
  TextRequest request;
  std::shared_ptr<Pieces> pieces;
  std::int64_t key = -1;  // of whoever asks (Inbox::submit)
  double asked = 0;       // when it was queued (steady_seconds)
};

}  // namespace switchyard::texts
