#include "texts/text.h"

#include <algorithm>
#include <chrono>

namespace switchyard::texts {

std::int64_t characters_in(const std::string& utf8) {
  return std::count_if(utf8.begin(), utf8.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; });
}

void Pieces::add(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    pieces_.push_back(std::move(piece));
    if (on_added_) on_added_();
  }
  came_.notify_one();
}

std::vector<Piece> Pieces::take(double seconds) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !pieces_.empty(); });
  return std::exchange(pieces_, {});
}

void Pieces::on_added(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  on_added_ = std::move(call);
}

void Pieces::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
}

bool Pieces::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

}  // namespace switchyard::texts
