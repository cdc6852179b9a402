#include "core/rank_fiber.h"

#include <algorithm>

#include "core/short_lock.h"

namespace switchyard {
namespace {

// The core number of the thread that watches deadlines.
constexpr int kWatch = -1;

thread_local RankFiber* rank_of_thread = nullptr;

}  // namespace

// Never inlined: a fiber changes threads, and its caller must not keep the old thread's address.
[[gnu::noinline]] RankFiber* Workers::running() {
  return rank_of_thread;
}

void Workers::run_ranks(const std::function<void(int)>& body) {
  if (ranks_ == 1) {
    const RankScope scope(*this);
    body(0);
    return;
  }
  std::vector<std::unique_ptr<RankFiber>> fibers;
  for (int rank = 0; rank < ranks_; ++rank)
    fibers.push_back(std::make_unique<RankFiber>(*this, [&body, rank] { body(rank); }));
  ended_ = 0;
  all_ended_ = false;
  std::thread watch([this] { watch_deadlines(); });
  {
    const std::scoped_lock lock(mutex_);
    fibers_ = std::move(fibers);
    for (const auto& rank : fibers_) make_ready(*rank);
  }
  wake_.notify_all();
  work(0, all_ended_);
  watch.join();
  const std::scoped_lock lock(mutex_);
  fibers_.clear();
}

void Workers::make_ready(RankFiber& rank) {
  rank.deadline = Clock::time_point::max();
  ready_.push_back(&rank);
  ++ready_now_;
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
  rank.core = core;
  rank.state = RankFiber::State::running;
  RankFiber* const before = std::exchange(rank_of_thread, &rank);
  swap_memory(rank.memory);
  rank.op = exchange_running_op(rank.op);
  rank.stream_log = StreamLog::exchange_of_thread(rank.stream_log);
  rank.fiber.resume();
  rank.op = exchange_running_op(rank.op);
  rank.stream_log = StreamLog::exchange_of_thread(rank.stream_log);
  swap_memory(rank.memory);
  rank_of_thread = before;
  const bool ended = rank.fiber.ended();
  // Once the rank is parked, another thread may run it.
  const bool woken = !ended && rank.state.exchange(RankFiber::State::parked) == RankFiber::State::woken;
  lock_short(lock);
  --busy_;
  if (woken) {
    rank.state = RankFiber::State::woken;
    make_ready(rank);
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
    make_ready(*rank);
    ++count;
  }
  if (count == 0) return;
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

// This thread itself runs ranks whose deadline has passed: all other threads may be running ranks that hang.
void Workers::watch_deadlines() {
  const auto nearest = [&] {
    Clock::time_point first = Clock::time_point::max();
    for (const auto& rank : fibers_) first = std::min(first, rank->deadline.load());
    return first;
  };
  std::unique_lock lock(mutex_);
  while (!all_ended_) {
    // Either this thread sees a rank's new deadline, or that rank sees watched_until_ and notifies it.
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
      make_ready(*rank);
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
  std::erase(ranks_, rank);  // still there if the deadline passed
}

}  // namespace switchyard
