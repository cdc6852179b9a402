// ThreadPool: splits index ranges over worker threads. One pool per rank; a pool of one thread runs inline.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace switchyard {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1; the calling thread counts as one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long but the last.
  // Returns when all are done. The pieces are handed out dynamically, so a result must not depend on which
  // thread ran a piece. Not reentrant: a body must not call for_range on the same pool. Bodies must not
  // throw.
  void for_range(std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  struct Job;
  void work();
  static void drain(Job& job);

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
