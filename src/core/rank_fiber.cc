#include "core/rank_fiber.h"

#include <algorithm>

#include "core/short_lock.h"

namespace switchyard {
namespace {

// The core number of the thread that sees to deadlines.
constexpr int kWatch = -1;

thread_local RankFiber* rank_of_thread = nullptr;

}  // namespace

// Of its own, so that the address is that of the thread that it is asked on.
[[gnu::noinline]] RankFiber* Workers::running() {
  return rank_of_thread;
}

void Workers::run_ranks(const std::function<void(int)>& body) {
  if (ranks_ == 1) {
    const RankScope scope(*this);
    body(0);
    return;
  }
  {
    const std::scoped_lock lock(mutex_);
    ended_ = 0;
    all_ended_ = false;
    for (int rank = 0; rank < ranks_; ++rank) {
      fibers_.push_back(std::make_unique<RankFiber>(*this, [&body, rank] { body(rank); }));
      ready_.push_back(fibers_.back().get());
    }
    ready_now_ = ranks_;
  }
  wake_.notify_all();
  std::thread watch([this] { watch_deadlines(); });
  work(0, all_ended_);
  watch.join();
  const std::scoped_lock lock(mutex_);
  fibers_.clear();
}

RankFiber* Workers::take_ready(int core) {
  if (ready_.empty()) return nullptr;
  auto found =
      std::find_if(ready_.begin(), ready_.end(), [&](const RankFiber* r) { return r->core == core; });
  if (found == ready_.end()) found = ready_.begin();
  RankFiber* const rank = *found;
  ready_.erase(found);
  --ready_now_;
  return rank;
}

void Workers::go_on(RankFiber& rank, int core, std::unique_lock<std::mutex>& lock) {
  ++busy_;
  lock.unlock();
  rank.deadline = Clock::time_point::max();
  rank.core = core;
  rank.state = RankFiber::State::running;
  rank_of_thread = &rank;
  swap_charging(rank.charging);
  rank.fiber.resume();
  swap_charging(rank.charging);
  rank_of_thread = nullptr;
  const bool ended = rank.fiber.ended();
  // From here on a parked rank may be another thread's.
  const bool woken = !ended && rank.state.exchange(RankFiber::State::parked) == RankFiber::State::woken;
  lock_short(lock);
  --busy_;
  if (woken) {
    rank.state = RankFiber::State::woken;
    ready_.push_back(&rank);
    ++ready_now_;
  }
  if (!ended || ++ended_ < ranks_) return;
  all_ended_ = true;
  wake_.notify_all();
  watch_.notify_one();
}

void Workers::wake(std::span<RankFiber* const> ranks) {
  std::unique_lock lock(mutex_, std::defer_lock);
  int count = 0;
  for (RankFiber* const rank : ranks) {
    if (rank->state.exchange(RankFiber::State::woken) != RankFiber::State::parked) continue;
    if (!lock) lock_short(lock);
    ready_.push_back(rank);
    ++count;
  }
  if (count == 0) return;
  ready_now_ += count;
  const int threads = std::min(count, asleep_);
  lock.unlock();
  for (int i = 0; i < threads; ++i) wake_.notify_one();
}

void Workers::park(RankFiber& rank, Clock::time_point deadline) {
  rank.deadline = deadline;
  if (deadline < watched_until_.load()) {
    const std::scoped_lock lock(mutex_);
    watch_.notify_one();
  }
  rank.fiber.suspend();
}

// Runs those whose deadline has passed itself: all other threads may be with ranks that hang.
void Workers::watch_deadlines() {
  const auto nearest = [&] {
    Clock::time_point first = Clock::time_point::max();
    for (const auto& rank : fibers_) first = std::min(first, rank->deadline.load());
    return first;
  };
  std::unique_lock lock(mutex_);
  while (!all_ended_) {
    // Either this sees a rank's deadline or the rank sees what this waits for.
    do watched_until_ = nearest();
    while (nearest() < watched_until_.load());
    const Clock::time_point until = watched_until_;
    if (until == Clock::time_point::max())
      watch_.wait(lock);
    else
      watch_.wait_until(lock, until);
    bool late = false;
    for (const auto& rank : fibers_) {
      if (rank->deadline.load() > Clock::now()) continue;
      if (rank->state.exchange(RankFiber::State::woken) != RankFiber::State::parked) continue;
      ready_.push_back(rank.get());
      ++ready_now_;
      late = true;
    }
    while (RankFiber* const rank = late ? take_ready(kWatch) : nullptr) go_on(*rank, kWatch, lock);
  }
}

void RankCondition::notify_all() {
  if (!ranks_.empty()) ranks_.front()->workers.wake(ranks_);
  ranks_.clear();
  threads_.notify_all();
}

void RankCondition::sleep(std::unique_lock<std::mutex>& lock, Workers::Clock::time_point deadline) {
  RankFiber* const rank = Workers::running();
  if (rank == nullptr) {
    const WaitScope waiting;
    if (deadline == Workers::Clock::time_point::max())
      threads_.wait(lock);
    else
      threads_.wait_until(lock, deadline);
    return;
  }
  ranks_.push_back(rank);
  lock.unlock();
  rank->workers.park(*rank, deadline);
  lock_short(lock);
  std::erase(ranks_, rank);  // where nobody notified it
}

}  // namespace switchyard
