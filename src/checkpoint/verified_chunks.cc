#include "checkpoint/verified_chunks.h"

#include <algorithm>

namespace switchyard {

bool VerifiedChunks::once(std::size_t chunk, const std::function<void()>& verify) {
  std::unique_lock lock(mutex_);
  settled_.wait(lock, [&] { return states_[chunk] != State::busy; });
  if (states_[chunk] == State::verified) return false;
  states_[chunk] = State::busy;
  lock.unlock();
  const auto settle = [&](State state) {
    lock.lock();
    states_[chunk] = state;
    settled_.notify_all();
  };
  try {
    verify();
  } catch (...) {
    settle(State::unknown);
    throw;
  }
  settle(State::verified);
  return true;
}

std::int64_t VerifiedChunks::verified() const {
  const std::lock_guard lock(mutex_);
  return std::count(states_.begin(), states_.end(), State::verified);
}

}  // namespace switchyard
