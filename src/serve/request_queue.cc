#include "serve/request_queue.h"

#include <chrono>

#include "serve/steady_seconds.h"

namespace switchyard::serve {

RequestQueue::RequestQueue(const Limits& limits, Statistics& statistics)
    : slots_(limits.slots),
      most_waiting_(limits.waiting),
      most_of_key_(limits.texts_of_key),
      statistics_(statistics) {}

RequestQueue::Submitted RequestQueue::submit(std::vector<WantedText> texts, std::int64_t key) {
  const double now = steady_seconds();
  {
    const std::lock_guard lock(mutex_);
    if (key >= 0 && most_of_key_ >= 0 && texts_of_key_[key] + std::ssize(texts) > most_of_key_) {
      statistics_.change([&](Counts& counts) { counts.refused += std::ssize(texts); });
      return Submitted::too_many_of_key;
    }
    if (closed_ || std::ssize(texts) > slots_ - running_ + most_waiting_ - std::ssize(waiting_)) {
      statistics_.change([&](Counts& counts) { counts.refused += std::ssize(texts); });
      return Submitted::full;
    }
    for (WantedText& text : texts) {
      if (text.request.most_tokens > 0 || text.request.scores_prompt) {
        text.asked = now;
        text.key = key;
        if (key >= 0) ++texts_of_key_[key];
        waiting_.push_back(std::move(text));
        continue;
      }
      statistics_.count_finish(Finish::length);
      text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::length});
    }
  }
  came_.notify_one();
  return Submitted::yes;
}

// The mutex is held.
void RequestQueue::leaves(const WantedText& text) {
  if (text.key >= 0) --texts_of_key_[text.key];
}

void RequestQueue::close() {
  std::deque<WantedText> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
  }
  came_.notify_one();
  for (const WantedText& text : left) {
    statistics_.count_finish(Finish::abandoned);
    text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::abandoned});
  }
}

bool RequestQueue::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::int64_t RequestQueue::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

std::int64_t RequestQueue::waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(waiting_);
}

void RequestQueue::wait(double seconds) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return closed_ || !waiting_.empty(); });
}

std::optional<WantedText> RequestQueue::take() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && waiting_.front().pieces->abandoned()) {
    leaves(waiting_.front());
    waiting_.pop_front();
    statistics_.count_finish(Finish::abandoned);
  }
  if (waiting_.empty() || running_ == slots_) return {};
  WantedText text = std::move(waiting_.front());
  waiting_.pop_front();
  ++running_;
  return text;
}

void RequestQueue::finished(const WantedText& text) {
  const std::lock_guard lock(mutex_);
  leaves(text);
  --running_;
}

bool RequestQueue::is_done() const {
  const std::lock_guard lock(mutex_);
  return closed_ && running_ == 0;
}

}  // namespace switchyard::serve
