// Batcher: the texts of a loop between two calls of the model. It joins the inbox, the slots, the scheduler
// and the sampler on rank 0's thread, one function for each moment of a call.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "texts/inbox.h"
#include "texts/observer.h"
#include "texts/sampler.h"
#include "texts/scheduler.h"
#include "texts/slots.h"

namespace switchyard::texts {

// A slot whose text begins, and the number of the text's adapter (Generator::use_adapter).
struct SlotAdapter {
  std::size_t slot;
  std::int32_t number;
};

// The next work of all ranks: first the copies, then the step.
struct Call {
  std::vector<PrefixCopy> copies;
  std::vector<SlotAdapter> begun;
  Step step;
};

// The work after a call, for a model that drafts: drop rejected drafts from the cache (copies of a
// slot to itself), then draft the token after `next`.
struct DraftCall {
  std::vector<PrefixCopy> truncated;
  std::vector<SlotTokens> next;
};

class Batcher {
 public:
  // Without a tokenizer texts have tokens alone. All arguments must outlive the batcher.
  Batcher(const Tokenizer* tokenizer, const Limits& limits, Inbox& inbox,
          Observer& observer = Observer::none(), OnFinished on_finished = {});
  // Closes the inbox and abandons all texts: the model makes no more tokens.
  ~Batcher();
  Batcher(const Batcher&) = delete;

  // Tells how the cache of the model is split, what it can copy (Slots::describe_cache), which slots it can
  // continue (Generator::is_current), and how many tokens fit into a slot.
  void describe_cache(std::int64_t groups, Slots::LongestPrefix longest_prefix,
                      std::function<bool(std::size_t slot)> is_current, std::int64_t slot_tokens) {
    slots_.describe_cache(groups, std::move(longest_prefix));
    is_current_ = std::move(is_current);
    slot_tokens_ = slot_tokens;
  }

  // Returns the next call, for `only` these texts (null: for all). Where no text is running, waits up to
  // `seconds` for one.
  Call next(double seconds, const std::vector<const Pieces*>* only = nullptr);
  // Takes the logits of the call that next() returned (Sampler::accept_logits), and the seconds that it took.
  DraftCall accept_logits(ThreadPool& pool, const Step& step, const Tensor& logits, double seconds);
  void accept_drafts(ThreadPool& pool, std::span<const SlotTokens> next, const Tensor& logits) {
    sampler_.accept_drafts(pool, next, texts_, logits);
  }
  // Ends all texts that have a slot.
  void end_all(Finish how);
  // The last draft of each slot, where a text wants another one behind it; else none.
  std::vector<SlotTokens> wanted_drafts(std::span<const SlotTokens> next) const;

 private:
  void start(WantedText text, Call& call);
  void read_again(std::size_t slot, Call& call);
  CallReport report_of(const Step& step, const Accepted& accepted, bool prompts, double seconds,
                       std::span<const std::int64_t> tokens_before);
  void tell_cache_use();
  void finish(std::size_t slot, Finish how);
  void choose_drafts(RunningText& text, std::int64_t texts);
  void rate_drafts(RunningText& text, std::size_t fed, std::size_t kept) const;

  const Tokenizer* tokenizer_;
  Inbox& inbox_;
  Observer& observer_;
  OnFinished on_finished_;
  Slots slots_;
  Scheduler scheduler_;
  Sampler sampler_;
  const double text_seconds_;  // 0: texts may take any time
  const std::int64_t drafts_,
      ngram_drafts_;  // most tokens that the model drafts; that are guessed from a text
  const CallCost call_cost_;
  std::int64_t held_drafts_ = 0;      // before the call that comes
  std::vector<PrefixCopy> rejected_;  // what slots keep of guesses, before the next call
  RunningTexts texts_;
  std::int64_t turns_ = 0;  // texts that got a slot
  std::int64_t slot_tokens_ = 0;
  std::function<bool(std::size_t)> is_current_ = [](std::size_t) { return true; };
};

}  // namespace switchyard::texts
