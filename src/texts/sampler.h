// Sampler: turns logits, on the host or on a GPU, into the texts' tokens and pieces. It applies penalties,
// computes log probabilities, looks for what ends a text, and accepts or rejects drafts. Only the model's
// thread calls a Sampler.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "generate/token_history.h"
#include "generate/token_text.h"
#include "texts/answer_guide.h"
#include "texts/draft_rule.h"
#include "texts/ngram_drafts.h"
#include "texts/scheduler.h"
#include "texts/stop_text.h"
#include "texts/text.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::texts {

// A text that holds a slot.
struct RunningText {
  RunningText(WantedText wanted, const Tokenizer* tokenizer, std::int64_t turn, std::int64_t cached_tokens);
  RunningText(const RunningText&) = delete;

  const TextRequest& request() const { return text.request; }
  // Returns whether the last token is one of the request's own ends. Its text is no part of the answer.
  bool ends_itself() const;
  // Reads the prompt and the new tokens from the beginning. Nothing of them is cached any more.
  void read_again();

  WantedText text;
  Progress progress;
  std::int64_t cached = 0;              // prompt tokens that were not read again
  std::int64_t tokens = 0;              // new ones
  double last_token_at = 0;             // when the last of them was there (steady_seconds)
  std::vector<std::int32_t> made;       // the new tokens
  std::optional<TokenText> characters;  // of them, where there is a tokenizer
  StopText stop;
  TokenHistory history;                                    // where the request's penalties need one
  std::string problem{};                                   // why the text cannot go on
  std::optional<NotFinite> not_finite{};                   // and the logit, where it is no number
  std::int64_t new_characters = 0, prompt_characters = 0;  // counted where log probabilities are wanted
  std::optional<TokenText> prompt_text{};                  // of a prompt that is scored
  std::optional<NgramDrafts> ngrams{};  // of prompt and new tokens, where drafts come from them
  DraftRate draft_rate{};
  std::optional<std::int32_t> held_draft{};  // of the next token, which the model does not read
  AnswerGuide guide;                         // what the answer of a chat asks of its tokens
  std::vector<std::int32_t> all_tokens{};    // of a text that is read again
};

// The texts by slot; null where a slot is free.
using RunningTexts = std::vector<std::unique_ptr<RunningText>>;

// The outcome of a step's logits, for each slot of Step::fed.
struct Accepted {
  std::vector<std::size_t> kept;  // how many of the fed tokens stay cached: rejected drafts do not
  std::vector<SlotTokens> next;   // of a model that drafts: the tokens that follow the kept ones
  std::int64_t new_tokens = 0, drafts = 0, accepted_drafts = 0;
};

class Sampler {
 public:
  // Without a tokenizer pieces have tokens alone. It must outlive the sampler.
  Sampler(const Tokenizer* tokenizer, const Limits& limits)
      : tokenizer_(tokenizer), vocab_(limits.vocab), ends_(limits.ends), drafts_(limits.drafts > 0) {}

  // Takes the logits of a step, f32 [n,V] or, where the step wants each token's, [n,S,V]; n is the number of
  // fed slots. Advances the texts' progress and sends their pieces. The pool's threads share the texts.
  Accepted accept_logits(ThreadPool& pool, const Step& step, const RunningTexts& texts, Tensor logits) const;
  // Takes the logits of drafts, f32 [n,V], for the slots of Accepted::next. Texts that are over are skipped.
  void accept_drafts(ThreadPool& pool, std::span<const SlotTokens> next, const RunningTexts& texts,
                     const Tensor& logits) const;

  // Returns how a text is over, if it is.
  std::optional<Finish> finish_of(const RunningText& text) const;
  // Returns the last piece of a text that is over.
  static Piece last_piece(RunningText& text, Finish how);

 private:
  // Row `row` of the logits is what follows a text's token.
  struct Wanted {
    std::size_t fed, row;  // `fed`: the index of the text's slot in Step::fed
  };
  struct Picked {
    std::int32_t token = 0;
    std::vector<TokenLogProb> log_probs = {};  // where the request wants them
    std::string problem = {};                  // then there is no token
    std::optional<NotFinite> not_finite = {};  // why
    bool is_over = false;                      // the text ends without a token
  };
  std::vector<Picked> pick(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                           const std::vector<Wanted>& wanted, const Tensor& logits) const;
  std::vector<std::int32_t> withheld_from(const RunningText& text) const;
  bool is_end(const RunningText& text, std::int32_t token) const;
  std::int64_t append_next(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                           const std::vector<Wanted>& wanted, const Tensor& logits) const;
  // A prompt token that follows a row of the logits.
  struct Scored {
    std::size_t fed, token;   // indices of the slot and of the chunk's token that it follows
    std::size_t row, before;  // of the logits; tokens of the prompt before it
  };
  std::vector<Picked> scores_of(ThreadPool& pool, const Step& step, const RunningTexts& texts,
                                const std::vector<Scored>& scored, const Tensor& logits) const;
  void score_prompts(ThreadPool& pool, const Step& step, const RunningTexts& texts, const Tensor& logits,
                     std::size_t rows_of_slot) const;
  void append(RunningText& text, Picked picked) const;

  const Tokenizer* const tokenizer_;
  const std::int64_t vocab_;
  const std::vector<std::int32_t> ends_;
  const bool drafts_;
};

}  // namespace switchyard::texts
