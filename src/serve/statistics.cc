#include "serve/statistics.h"

namespace switchyard::serve {

void Statistics::refused(std::int64_t texts) {
  const std::lock_guard lock(mutex_);
  counts_.refused += texts;
}

void Statistics::ended(Finish how) {
  const std::lock_guard lock(mutex_);
  (how == Finish::stop     ? counts_.stopped
   : how == Finish::length ? counts_.length
   : how == Finish::failed ? counts_.failed
                           : counts_.abandoned) += 1;
}

void Statistics::started(double seconds_waited, std::int64_t cached_tokens) {
  const std::lock_guard lock(mutex_);
  counts_.shared_tokens += cached_tokens;
  timings_.queue_seconds.observe(seconds_waited);
}

void Statistics::called(const CallReport& call) {
  const std::lock_guard lock(mutex_);
  (call.prompts ? counts_.prompt_calls : counts_.token_calls) += 1;
  (call.prompts ? counts_.prompt_seconds : counts_.token_seconds) += call.seconds;
  counts_.prompt_tokens += call.prompt_tokens;
  counts_.new_tokens += call.new_tokens;
  counts_.drafts += call.drafts;
  counts_.accepted_drafts += call.accepted_drafts;
  counts_.held_drafts += call.held_drafts;
  for (const double seconds : call.first_token_seconds) timings_.first_token_seconds.observe(seconds);
  for (const double seconds : call.next_token_seconds) timings_.next_token_seconds.observe(seconds);
  for (const double seconds : call.mask_seconds) timings_.grammar_mask_seconds.observe(seconds);
}

void Statistics::finished(const FinishedText& text) {
  const std::lock_guard lock(mutex_);
  timings_.text_seconds.observe(text.seconds);
  timings_.prompt_tokens.observe(static_cast<double>(text.request.prompt.size()));
  timings_.new_tokens.observe(static_cast<double>(text.new_tokens));
  if (text.request.answer == nullptr) return;
  const auto calls = static_cast<std::int64_t>(text.calls);
  const char* const word = text.how == Finish::length      ? "length"
                           : text.how == Finish::abandoned ? "abandoned"
                           : text.how == Finish::failed    ? "failed"
                           : calls > 0                     ? "tool_calls"
                                                           : "stop";
  counts_.chat_requests[word] += 1;
  if (calls > 0) counts_.tool_calls[std::string(chat::name_of(text.request.answer->format))] += calls;
}

void Statistics::cache_holds(std::int64_t tokens, std::int64_t capacity) {
  const std::lock_guard lock(mutex_);
  cache_use_ = {tokens, capacity};
}

void Statistics::assigned(std::span<const double> assignments, std::span<const std::int64_t> layers,
                          std::size_t experts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (assignments_.size() == i) assignments_.push_back({layers[i], std::vector<double>(experts)});
    for (std::size_t e = 0; e < experts; ++e) assignments_[i].of_expert[e] += assignments[i * experts + e];
  }
}

Counts Statistics::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

Timings Statistics::timings() const {
  const std::lock_guard lock(mutex_);
  return timings_;
}

CacheUse Statistics::cache_use() const {
  const std::lock_guard lock(mutex_);
  return cache_use_;
}

std::vector<LayerAssignments> Statistics::assignments() const {
  const std::lock_guard lock(mutex_);
  return assignments_;
}

}  // namespace switchyard::serve
