#include "core/workers.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/rank_fiber.h"
#include "core/short_lock.h"

namespace switchyard {
namespace {

thread_local Workers* workers_of_thread = nullptr;

using Clock = Workers::Clock;
constexpr auto kLook = std::chrono::microseconds(100);

// Waits until the condition holds, or until `end`.
template <typename Condition>
void look_for(const Condition& holds, Clock::time_point end = Clock::now() + kLook) {
  do {
    for (int i = 0; i < 32; ++i) {
      if (holds()) return;
      pause_briefly();
    }
  } while (Clock::now() < end);
}

}  // namespace

struct Workers::Loop {
  const std::int64_t count, grain;
  const Body& body;
  std::atomic<int>& open;
  std::atomic<std::int64_t> next;
  std::atomic<int> helpers;  // changed with the workers' mutex held
  std::condition_variable left{};
  std::atomic<bool> failed{false};
  std::exception_ptr failure = {};  // the first that a body threw

  bool has_pieces() const { return next.load(std::memory_order_relaxed) < count; }
  bool run_piece() {
    const std::int64_t begin = next.fetch_add(grain);
    if (begin >= count) return false;
    if (begin + grain >= count) --open;
    // Others may be in this loop: only its rank may throw, behind it.
    try {
      body(begin, std::min(begin + grain, count));
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
    return true;
  }
};

Workers::Workers(int cores, int ranks) : cores_(cores), ranks_(ranks) {
  CHECK(cores >= 1 && ranks >= 1, "{} cores for {} ranks", cores, ranks);
  try {
    for (int core = 1; core < cores; ++core) helpers_.emplace_back([this, core] { work(core, stop_); });
  } catch (const std::system_error& error) {
    end_helpers();
    fail_usage(
        "[workers] cannot start thread {} of {}: {}; raise the limits of processes and of address space "
        "(ulimit -u, -v), or use fewer cores (taskset)",
        helpers_.size() + 1, cores, error.code().message());
  }
}

Workers::~Workers() {
  end_helpers();
}

void Workers::end_helpers() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void Workers::run(std::int64_t count, std::int64_t grain, const Body& body) {
  if (cores_ == 1 || count <= grain) {
    for (std::int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count));
    return;
  }
  Loop loop{count, grain, body, open_, 0, 0};
  std::int64_t wanted = (count + grain - 1) / grain - 1;
  {
    const auto lock = lock_short(mutex_);
    loops_.push_back(&loop);
    ++open_;
    wanted = std::min<std::int64_t>({wanted, cores_ - busy_, asleep_});
  }
  for (; wanted > 0; --wanted) wake_.notify_one();
  while (loop.run_piece()) {
  }
  auto lock = lock_short(mutex_);
  loops_.erase(std::find(loops_.begin(), loops_.end(), &loop));
  if (loop.helpers > 0) {
    lock.unlock();
    // A rank that is a thread leaves its core to another's loop; a fiber's thread is its core.
    look_for([&] { return loop.helpers == 0 || (open_ > 0 && running() == nullptr); });
    lock_short(lock);
  }
  if (loop.helpers > 0) {
    --busy_;
    if (open_ > 0) wake_.notify_one();
    loop.left.wait(lock, [&] { return loop.helpers == 0; });
    ++busy_;
  }
  if (loop.failure) std::rethrow_exception(loop.failure);
}

// Either run() sees the lower count or this sees the open loop: a free core is not forgotten.
void Workers::leave() {
  --busy_;
  if (open_ == 0) return;
  const std::scoped_lock lock(mutex_);
  wake_.notify_one();
}

Workers::Loop* Workers::loop_to_help() {
  Loop* best = nullptr;
  for (Loop* loop : loops_) {
    if (loop->has_pieces() && (best == nullptr || loop->helpers < best->helpers)) best = loop;
  }
  return best;
}

void Workers::work(int core, const std::atomic<bool>& over) {
  std::unique_lock lock(mutex_);
  Clock::time_point idle_since = Clock::now();
  while (!over) {
    if (RankFiber* const rank = take_ready(core)) {
      go_on(*rank, core, lock);
    } else if (Loop* const loop = busy_ < cores_ ? loop_to_help() : nullptr) {
      help(*loop, lock);
    } else if (const auto end = idle_since + kLook;
               (ranks_ <= cores_ || !fibers_.empty()) && busy_ < cores_ && Clock::now() < end) {
      lock.unlock();
      look_for([&] { return ready_now_ > 0 || may_help() || busy_ >= cores_ || over; }, end);
      lock_short(lock);
      continue;
    } else {
      ++asleep_;
      wake_.wait(lock,
                 [&] { return over || !ready_.empty() || (busy_ < cores_ && loop_to_help() != nullptr); });
      --asleep_;
    }
    idle_since = Clock::now();
  }
}

void Workers::help(Loop& loop, std::unique_lock<std::mutex>& lock) {
  ++loop.helpers;
  ++busy_;
  lock.unlock();
  while (busy_ <= cores_ && ready_now_ == 0 && loop.run_piece()) {
  }
  lock_short(lock);
  --busy_;
  if (--loop.helpers == 0) loop.left.notify_one();
}

RankScope::RankScope(Workers& workers) : before_(std::exchange(workers_of_thread, &workers)) {
  workers.enter();
}

RankScope::~RankScope() {
  workers_of_thread->leave();
  workers_of_thread = before_;
}

WaitScope::WaitScope() {
  if (workers_of_thread != nullptr) workers_of_thread->leave();
}

WaitScope::~WaitScope() {
  if (workers_of_thread != nullptr) workers_of_thread->enter();
}

}  // namespace switchyard
