// Workers: the cores of one process, shared by the ranks that are its threads.
//
// Each rank runs its own loops. A core that no rank needs, because ranks wait for others, helps with the
// loops of the rest: a rank with a hot expert gets every core while the others wait for it.
//
// Invariants:
// 1. `busy_` threads have work: ranks outside a WaitScope, and helpers inside a loop. A helper begins only
// while
//    that is less than the cores, and goes after the piece in which it became more.
// 2. A loop lives on the stack of the rank that runs it. It is in `loops_` only while it may have pieces
// left,
//    and its rank goes on when no helper is in it.
// 3. Who has nothing to do looks for the next loop a moment long before it sleeps, since waking takes
//    longer than many loops; and only while its core is free. A helper does not where ranks are more than
//    cores: one that was let go is not busy before it runs, and waits for that very core.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard {

class Workers {
 public:
  using Body = std::function<void(std::int64_t, std::int64_t)>;

  // For `ranks` threads that run loops. Starts cores - 1 helpers; both are at least 1.
  explicit Workers(int cores, int ranks = 1);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int cores() const { return cores_; }
  int ranks() const { return ranks_; }

  // As ThreadPool::for_range, for a count and a grain of at least 1. For a thread between enter() and
  // leave().
  void run(std::int64_t count, std::int64_t grain, const Body& body);

  // The calling thread has work from now on, or has none.
  void enter() { ++busy_; }
  void leave();

 private:
  struct Loop;
  void help();
  Loop* loop_to_help();  // the one with the fewest helpers, or null
  bool may_help() const { return open_ > 0 && busy_ < cores_; }

  const int cores_, ranks_;
  std::atomic<int> busy_{0};
  std::atomic<int> open_{0};  // loops with pieces that nobody has, for those without the mutex
  std::mutex mutex_;          // guards what follows
  std::condition_variable wake_;
  std::vector<Loop*> loops_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> helpers_;
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

// Before a rank waits for others that may be about to come: until `holds`, for a moment at most, with the
// lock open. Its core is its own meanwhile; so nothing where ranks are more than cores.
void look_for_others(std::unique_lock<std::mutex>& lock, const std::function<bool()>& holds);

}  // namespace switchyard
