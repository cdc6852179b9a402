// Workers: the cores of one process, which run its ranks and the loops of its ranks.
//
// Ranks that share a process are fibers (run_ranks): there are as many threads as cores, and a rank that
// waits for others leaves its thread to the next that is ready. Ranks that have processes of their own, and
// programs without ranks, are threads as they come (RankScope).
//
// Each rank runs its own loops. A core that no rank needs, because ranks wait for others, helps with the
// loops of the rest: a rank with a hot expert gets every core while the others wait for it.
//
// Invariants:
// 1. `busy_` threads have work: those that run a rank, and helpers inside a loop. A helper begins only while
//    that is less than the cores, and goes after the piece in which it became more, or a rank became ready.
// 2. A loop lives on the stack of the rank that runs it. It is in `loops_` only while it may have pieces
//    left, and its rank goes on when no helper is in it.
// 3. Who has nothing to do looks for work a moment long before it sleeps, since waking takes longer than many
//    loops; and only while its core is free. Not where ranks that are threads are more than cores: one that
//    was let go is not busy before it runs, and waits for that very core.
// 4. A rank waits for others only in a RankCondition, with no mutex held but the condition's: a thread that
//    waits for a mutex runs no rank, and the one with the mutex may be without a thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace switchyard {

struct RankFiber;

class Workers {
 public:
  using Body = std::function<void(std::int64_t, std::int64_t)>;
  using Clock = std::chrono::steady_clock;

  // For `ranks` ranks that run loops. Starts cores - 1 threads; both are at least 1.
  explicit Workers(int cores, int ranks = 1);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int cores() const { return cores_; }
  int ranks() const { return ranks_; }

  // Runs body(rank) for ranks 0 to ranks() - 1 at once and returns when all have ended; a single one runs on
  // the calling thread. Bodies must not throw.
  void run_ranks(const std::function<void(int)>& body);

  // As ThreadPool::for_range, for a count and a grain of at least 1. For a rank.
  void run(std::int64_t count, std::int64_t grain, const Body& body);

  // The calling thread has work from now on, or has none.
  void enter() { ++busy_; }
  void leave();

  // The rank that the calling thread runs as a fiber, or null.
  static RankFiber* running();

 private:
  friend class RankCondition;
  struct Loop;

  // What a thread of a core does until `over`. `core`: its number, from 0.
  void work(int core, const std::atomic<bool>& over);
  Loop* loop_to_help();  // the one with the fewest helpers, or null
  void help(Loop& loop, std::unique_lock<std::mutex>& lock);
  bool may_help() const { return open_ > 0 && busy_ < cores_; }

  void make_ready(RankFiber& rank);
  RankFiber* take_ready(int core);  // one that ran on this core before, or the first; or null
  void go_on(RankFiber& rank, int core, std::unique_lock<std::mutex>& lock);
  void wake(std::span<RankFiber* const> ranks);
  // Suspends the calling rank until it is woken or past the deadline.
  void park(RankFiber& rank, Clock::time_point deadline);
  void watch_deadlines();

  const int cores_, ranks_;
  std::atomic<int> busy_{0};
  std::atomic<int> open_{0};       // loops with pieces that nobody has, for those without the mutex
  std::atomic<int> ready_now_{0};  // the size of ready_, likewise
  std::mutex mutex_;               // guards what follows
  std::condition_variable wake_;
  int asleep_ = 0;  // in wake_
  std::vector<Loop*> loops_;
  std::vector<RankFiber*> ready_;  // in the order in which they became so
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;

  std::vector<std::unique_ptr<RankFiber>> fibers_;  // while run_ranks runs, and what follows
  int ended_ = 0;
  std::atomic<bool> all_ended_{false};
  std::condition_variable watch_;
  std::atomic<Clock::time_point> watched_until_{Clock::time_point::max()};
};

// While alive, the calling thread is one of the ranks of `workers`.
class RankScope {
 public:
  explicit RankScope(Workers& workers);
  ~RankScope();
  RankScope(const RankScope&) = delete;
  RankScope& operator=(const RankScope&) = delete;

 private:
  Workers* const before_;
};

// While alive, the calling thread waits for other ranks: its core is free for their loops. Without effect on
// a thread that is no rank.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
};

// What a rank waits for that others bring about: a condition variable that leaves the core of the rank that
// waits to others. Threads that are no ranks may wait, too.
class RankCondition {
 public:
  // Returns when `holds`, which is asked with the lock held.
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& holds) {
    wait_until(lock, Workers::Clock::time_point::max(), holds);
  }
  // The same, or at the deadline. Returns whether it holds.
  template <typename Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Workers::Clock::time_point deadline,
                  const Condition& holds) {
    while (!holds()) {
      if (Workers::Clock::now() >= deadline) return false;
      sleep(lock, deadline);
    }
    return true;
  }
  // With the mutex held that those who wait hold.
  void notify_all();

 private:
  void sleep(std::unique_lock<std::mutex>& lock, Workers::Clock::time_point deadline);

  std::vector<RankFiber*> ranks_;
  std::condition_variable threads_;
};

}  // namespace switchyard
