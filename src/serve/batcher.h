// Batcher: the texts of a server between two calls of the model. It joins the queue, the slots, the
// scheduler, the sampler and the statistics on rank 0's thread, one function for each moment of a call.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "serve/request_queue.h"
#include "serve/sampler.h"
#include "serve/scheduler.h"
#include "serve/slots.h"
#include "serve/statistics.h"

namespace switchyard::serve {

// The next work of all ranks: first the copies, then the step.
struct Call {
  std::vector<PrefixCopy> copies;
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
  // All arguments must outlive the batcher.
  Batcher(const Tokenizer& tokenizer, const Limits& limits, RequestQueue& queue, Statistics& statistics);

  // Tells how the cache of the model is split, what it can copy (Slots::describe_cache), and how many tokens
  // fit into a slot.
  void describe_cache(std::int64_t groups, Slots::LongestPrefix longest_prefix, std::int64_t slot_tokens) {
    slots_.describe_cache(groups, std::move(longest_prefix));
    slot_tokens_ = slot_tokens;
  }
  // Calls `hook` when a text ends that was not abandoned, with the tokens that its slot has cached.
  using FinishedHook =
      std::function<void(std::size_t slot, std::size_t choice, std::span<const std::int32_t> cached)>;
  void on_finished(FinishedHook hook) { on_finished_ = std::move(hook); }

  // Returns the next call. Where no text is running, waits up to `seconds` for one.
  Call next(double seconds);
  // Takes the logits of the call that next() returned (Sampler::accept_logits), and the seconds that it took.
  DraftCall accept_logits(ThreadPool& pool, const Step& step, const Tensor& logits, double seconds);
  void accept_drafts(ThreadPool& pool, std::span<const SlotTokens> next, const Tensor& logits) {
    sampler_.accept_drafts(pool, next, texts_, logits);
  }
  // Closes the queue and abandons all texts: the model makes no more tokens.
  void give_up();

 private:
  void count_chat(const RunningText& text, Finish how);
  void start(WantedText text, Call& call);
  void count(const Step& step, bool prompts, const Accepted& accepted, double seconds);
  void time_tokens(const Step& step, std::span<const std::int64_t> tokens_before);
  void tell_cache_use();
  void finish(std::size_t slot, Finish how);

  const Tokenizer& tokenizer_;
  RequestQueue& queue_;
  Statistics& statistics_;
  Slots slots_;
  Scheduler scheduler_;
  Sampler sampler_;
  const double text_seconds_;  // 0: texts may take any time
  RunningTexts texts_;
  std::int64_t turns_ = 0;  // texts that got a slot
  std::int64_t slot_tokens_ = 0;
  FinishedHook on_finished_;
};

}  // namespace switchyard::serve
