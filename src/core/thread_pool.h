// ThreadPool: splits index ranges over worker threads. One pool per rank; a pool of one thread runs inline.
//
// A pool may be *abstract*: it runs nothing. Kernels hand it a description of their work instead (`skips`),
// and loops over data (`for_range`) return at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "core/work.h"

namespace switchyard {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; the calling thread counts as one of them
  // Abstract: counts work in `counter`. `workspace`: kernels also take the buffers that they would work in on
  // this machine's processor.
  ThreadPool(WorkCounter& counter, bool workspace);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // True when the pool is abstract: the work is counted, and the kernel returns without doing it.
  bool skips(const Work& work) const {
    if (counter_ != nullptr) counter_->count(work);
    return counter_ != nullptr;
  }
  bool counts_workspace() const { return workspace_; }

  // Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long but the last.
  // Returns when all are done. The pieces are handed out dynamically, so a result must not depend on which
  // thread ran a piece. Not reentrant: a body must not call for_range on the same pool. Bodies must not
  // throw; buffers they make are charged to no rank.
  void for_range(std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  struct Job;
  void work();
  static void drain(Job& job);

  WorkCounter* counter_ = nullptr;
  bool workspace_ = false;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  int active_ = 0;
  bool stop_ = false;
};

}  // namespace switchyard
