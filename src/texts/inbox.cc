#include "texts/inbox.h"

#include <chrono>

#include "texts/steady_seconds.h"

namespace switchyard::texts {

Inbox::Inbox(const Limits& limits, Observer& observer)
    : slots_(limits.slots),
      most_waiting_(limits.waiting),
      most_of_key_(limits.texts_of_key),
      observer_(observer) {}

Inbox::Submitted Inbox::submit(std::vector<WantedText> texts, std::int64_t key) {
  const double now = steady_seconds();
  {
    const std::lock_guard lock(mutex_);
    if (key >= 0 && most_of_key_ >= 0 && texts_of_key_[key] + std::ssize(texts) > most_of_key_) {
      observer_.refused(std::ssize(texts));
      return Submitted::too_many_of_key;
    }
    if (closed_ || std::ssize(texts) > slots_ - running_ + most_waiting_ - std::ssize(waiting_)) {
      observer_.refused(std::ssize(texts));
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
      observer_.ended(Finish::length);
      text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::length});
    }
  }
  came_.notify_one();
  return Submitted::yes;
}

// The mutex is held.
void Inbox::leaves(const WantedText& text) {
  if (text.key >= 0) --texts_of_key_[text.key];
}

void Inbox::close() {
  std::deque<WantedText> left;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
  }
  came_.notify_one();
  for (const WantedText& text : left) {
    observer_.ended(Finish::abandoned);
    text.pieces->add({.choice = text.request.choice, .text = "", .finish = Finish::abandoned});
  }
}

bool Inbox::is_closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::int64_t Inbox::running() const {
  const std::lock_guard lock(mutex_);
  return running_;
}

std::int64_t Inbox::waiting() const {
  const std::lock_guard lock(mutex_);
  return std::ssize(waiting_);
}

void Inbox::wait(double seconds) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return closed_ || !waiting_.empty(); });
}

std::optional<WantedText> Inbox::take() {
  const std::lock_guard lock(mutex_);
  while (!waiting_.empty() && waiting_.front().pieces->abandoned()) {
    leaves(waiting_.front());
    waiting_.pop_front();
    observer_.ended(Finish::abandoned);
  }
  if (waiting_.empty() || running_ == slots_ || held_) return {};
  WantedText text = std::move(waiting_.front());
  waiting_.pop_front();
  ++running_;
  return text;
}

void Inbox::finished(const WantedText& text) {
  const std::lock_guard lock(mutex_);
  leaves(text);
  --running_;
}

void Inbox::hold(bool held) {
  const std::lock_guard lock(mutex_);
  held_ = held;
}

bool Inbox::is_done() const {
  const std::lock_guard lock(mutex_);
  return closed_ && running_ == 0;
}

}  // namespace switchyard::texts
