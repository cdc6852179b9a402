#include "serve/completion.h"

#include <chrono>

namespace switchyard::serve {

void Pieces::add(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
  }
  came_.notify_one();
}

std::vector<Piece> Pieces::take(double seconds) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !pieces_.empty(); });
  return std::exchange(pieces_, {});
}

void Pieces::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

bool Pieces::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace switchyard::serve
