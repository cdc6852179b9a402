// Batcher: which texts the model goes on with in its next call. Texts join and leave between two calls
// (continuous batching, Yu et al. 2022, Orca), long prompts are read in pieces between others' tokens
// (Agrawal et al. 2023, Sarathi).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "generate/generator.h"
#include "generate/token_text.h"
#include "serve/completion.h"
#include "serve/stop_text.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

// A row that begins anew, with the first `tokens` tokens of row `from`.
struct Begun {
  std::size_t row, from;
  std::int64_t tokens;
};

// What the ranks do next, in this order.
struct Step {
  std::vector<Begun> begun;
  std::vector<RowTokens> fed;  // none: nothing to do
  bool drafted = false;        // their second tokens are guesses
  bool scored = false;         // parts of prompts whose every token's logits are wanted

  bool wants_each() const { return drafted || scored; }  // logits of every token
};

// What the ranks do after a step of a model that drafts tokens: rows keep fewer tokens than they were fed,
// and the tokens that follow on those of the step, row by row.
struct Follow {
  std::vector<Begun> kept;
  std::vector<RowTokens> next;
};

struct BatcherLimits {
  std::int64_t rows = 1;                // texts at once
  std::int64_t waiting = 0;             // texts that may wait for a row
  std::int64_t prompt_piece = 512;      // most tokens of prompts in one call
  std::int64_t scored_piece = 64;       // the same of prompts whose every token's logits are wanted
  bool shares_prefixes = true;          // a prompt that begins as another text did is not read again so far
  bool drafts = false;                  // texts are fed a guess of the token after their last, too
  std::int64_t vocab = 0;               // ids from here on are never picked
  std::vector<std::int32_t> ends = {};  // ids that end a text
};

// Since the start.
struct BatcherCounts {
  std::int64_t running = 0, waiting = 0;  // now
  std::int64_t stopped = 0, length = 0, abandoned = 0, refused = 0, failed = 0;
  std::int64_t prompt_tokens = 0, shared_tokens = 0, new_tokens = 0;  // read, not read again, made
  std::int64_t prompt_calls = 0, token_calls = 0;                     // of the model
  std::int64_t drafts = 0, accepted_drafts = 0;                       // guesses of tokens, and those picked
  double prompt_seconds = 0, token_seconds = 0;
};

class Batcher {
 public:
  // The tokenizer must outlive it.
  Batcher(const Tokenizer& tokenizer, const BatcherLimits& limits);
  ~Batcher();

  // By any thread. All of the texts wait for rows from now on; false when there is no room for them to wait,
  // or after close().
  bool submit(std::vector<WantedText> texts);
  // No more are taken; those that have no row yet are abandoned.
  void close();
  // Of a model that makes no more of them: all texts are abandoned.
  void give_up();
  bool is_closed() const;
  BatcherCounts counts() const;

  // Whether the model can begin a row with so many tokens of the row `from`, as it remembers that now.
  using CanBegin = std::function<bool(std::size_t from, std::int64_t tokens)>;
  // By the thread of the model, first: the rows are split into so many parts, which share nothing.
  void share_rows(std::int64_t parts, CanBegin can_begin) {
    rows_of_part_ = rows_.size() / static_cast<std::size_t>(parts);
    can_begin_ = std::move(can_begin);
  }
  // `hook` is called, by that thread, when a text ends that was not abandoned, with the tokens of its row
  // that were fed and kept.
  using FinishedHook =
      std::function<void(std::size_t row, std::size_t choice, std::span<const std::int32_t> fed)>;
  void on_finished(FinishedHook hook) { on_finished_ = std::move(hook); }
  // Then: what to feed next, waiting up to `seconds` for something; then what came of
  // it.
  Step next(double seconds);
  // Logits f32 of the step that next() gave, [rows fed,V] or of one that wants each token's [rows fed,S,V],
  // and how long they took. The threads of the pool pick tokens.
  Follow take(ThreadPool& pool, const Step& step, Tensor logits, double seconds);
  // Then, with drafts: logits f32 [rows,V] of the guesses for the rows of Follow::next.
  void take_drafts(const Follow& follow, Tensor logits);
  // Closed, and no row is left.
  bool is_done() const;

 private:
  struct Running;
  void admit(Step& step);
  std::size_t free_row(std::size_t begin, std::size_t count) const;
  Begun place_for(const TextRequest& request, const std::vector<std::size_t>& origins) const;
  Step prompt_step() const;
  Step token_step() const;
  struct Picked;
  struct Place;
  Picked pick(const Running& running, std::span<float> logits) const;
  void pick_all(ThreadPool& pool, const Step& step, const std::vector<Place>& places, Tensor& logits);
  void score_prompts(ThreadPool& pool, const Step& step, const Tensor& logits, std::size_t of_row);
  std::optional<Finish> end_of(const Running& running) const;
  RowTokens following(const RowTokens& fed) const;
  void add(Running& running, Picked picked);
  void finish(std::size_t row, Finish how);

  const Tokenizer& tokenizer_;
  const BatcherLimits limits_;

  mutable std::mutex mutex_;  // of what follows, up to the blank line
  std::condition_variable came_;
  std::deque<WantedText> waiting_;
  bool closed_ = false;
  BatcherCounts counts_;

  std::vector<std::unique_ptr<Running>> rows_;  // of the model's thread alone; null: free
  std::vector<std::vector<std::int32_t>> fed_;  // what the model remembers of each row
  std::vector<std::int64_t> began_;             // the turn of each row's last text
  std::size_t rows_of_part_;
  CanBegin can_begin_ = [](std::size_t, std::int64_t) { return true; };
  std::int64_t turns_ = 0;    // that were given
  bool prompts_next_ = true;  // prompts and tokens take turns
  FinishedHook on_finished_;
};

}  // namespace switchyard::serve
