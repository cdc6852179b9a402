#include "checkpoint/verified_chunks.h"

#include <algorithm>

namespace switchyard {

VerifiedChunks::Outcome VerifiedChunks::once(std::size_t chunk, const std::function<Content()>& verify) {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return states_[chunk] != State::busy; });
  if (states_[chunk] == State::verified) {
    for (const auto& [kept, content] : kept_) {
      if (kept == chunk && content) return {false, content};
    }
    return {false, nullptr};
  }
  states_[chunk] = State::busy;
  lock.unlock();
  const auto settle = [&](State state) {
    lock.lock();
    states_[chunk] = state;
    settled_.notify_all();
  };
  Content content;
  try {
    content = verify();
  } catch (...) {
    settle(State::unknown);
    throw;
  }
  settle(State::verified);
  if (content) kept_[next_++ % kKept] = {chunk, content};
  return {true, content};
}

std::int64_t VerifiedChunks::verified() const {
  const std::lock_guard lock(mutex_);
  return std::count(states_.begin(), states_.end(), State::verified);
}

}  // namespace switchyard
