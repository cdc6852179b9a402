// Workers: the threads of one process, one a core, which run its ranks and the ranks' loops.
//
// Ranks that share a process are fibers (run_ranks): there are as many threads as cores, and a rank that
// waits for others yields its thread to the next ready rank. A rank with a process of its own, and a program
// without ranks, run on ordinary threads (RankScope).
//
// Each rank runs its own loops. A core that no rank needs, because ranks wait for others, helps with the
// loops of the remaining ranks: a rank with a hot expert gets every core while the others wait for it.
//
// Invariants:
// 1. `busy_` counts threads with work: threads that run a rank, and helpers inside a loop. A helper starts
//    only while `busy_` < cores. It leaves after the piece during which `busy_` > cores or a rank is ready.
// 2. A loop lives on the stack of the rank that runs it. It is in `loops_` only while it may have pieces
//    left, and its rank continues only when no helper is inside the loop.
// 3. An idle thread polls for work briefly before it sleeps, since waking takes longer than many loops, and
//    polls only while its core is free. It does not poll when ranks are threads and outnumber the cores: a
//    rank that was just woken is not counted as busy until it runs, and it waits for that very core.
// 4. A rank waits for others only in a RankCondition, holding no mutex but the condition's: a thread blocked
//    on a mutex runs no rank, and the rank that holds the mutex may have no thread.
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

  // Prepares for `ranks` ranks that run loops. Starts cores - 1 threads; both arguments are at least 1.
  // Error(usage) when the system refuses a thread.
  explicit Workers(int cores, int ranks = 1);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int cores() const { return cores_; }
  int ranks() const { return ranks_; }

  // Runs body(rank) concurrently for ranks 0 to ranks() - 1 and returns when all have ended; a single rank
  // runs on the calling thread. Bodies must not throw.
  void run_ranks(const std::function<void(int)>& body);

  // ThreadPool::for_range for a count and a grain of at least 1. Called by a rank. Of a body that throws, the
  // other pieces are done first; several that throw throw one of the exceptions.
  void run(std::int64_t count, std::int64_t grain, const Body& body);

  // Marks the calling thread as having work from now on, or none.
  void enter() { ++busy_; }
  void leave();

  // The rank that the calling thread runs as a fiber, or null.
  static RankFiber* running();

 private:
  friend class RankCondition;
  struct Loop;

  void end_helpers();
  // The main loop of a core's thread, until `over`. `core`: the core's index, from 0.
  void work(int core, const std::atomic<bool>& over);
  Loop* loop_to_help();  // the loop with the fewest helpers, or null
  void help(Loop& loop, std::unique_lock<std::mutex>& lock);
  bool may_help() const { return open_ > 0 && busy_ < cores_; }

  void make_ready(RankFiber& rank);
  RankFiber* take_ready(int core);  // a rank that last ran on this core, else the first; or null
  void go_on(RankFiber& rank, int core, std::unique_lock<std::mutex>& lock);
  void wake(std::span<RankFiber* const> ranks);
  // Suspends the calling rank until another thread wakes it or the deadline passes.
  void park(RankFiber& rank, Clock::time_point deadline);
  void watch_deadlines();

  const int cores_, ranks_;
  std::atomic<int> busy_{0};
  std::atomic<int> open_{0};       // loops with unassigned pieces, read without the mutex
  std::atomic<int> ready_now_{0};  // the size of ready_, likewise
  std::mutex mutex_;               // guards all members below
  std::condition_variable wake_;
  int asleep_ = 0;  // threads waiting on wake_
  std::vector<Loop*> loops_;
  std::vector<RankFiber*> ready_;  // in the order in which the ranks became ready
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;

  std::vector<std::unique_ptr<RankFiber>> fibers_;  // while run_ranks runs, as the members below
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

// While alive, the calling thread waits for other ranks: its core is free for their loops. No effect on a
// thread that is no rank.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;
};

// A condition variable on which a rank waits for other ranks, and which lends the waiting rank's core to
// them. Threads that are no ranks may wait, too.
class RankCondition {
 public:
  // Returns when `holds` returns true; it is called with the lock held.
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& holds) {
    wait_until(lock, Workers::Clock::time_point::max(), holds);
  }
  // Waits as `wait` does, but until the deadline at most. Returns true when the condition holds.
  template <typename Condition>
  bool wait_until(std::unique_lock<std::mutex>& lock, Workers::Clock::time_point deadline,
                  const Condition& holds) {
    while (!holds()) {
      if (Workers::Clock::now() >= deadline) return false;
      sleep(lock, deadline);
    }
    return true;
  }
  // The caller holds the mutex that the waiting ranks use.
  void notify_all();

 private:
  void sleep(std::unique_lock<std::mutex>& lock, Workers::Clock::time_point deadline);

  std::vector<RankFiber*> ranks_;
  std::condition_variable threads_;
};

}  // namespace switchyard
