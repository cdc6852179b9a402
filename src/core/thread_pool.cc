#include "core/thread_pool.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "core/memory_account.h"

namespace switchyard {

struct ThreadPool::Job {
  std::int64_t count;
  std::int64_t grain;
  const std::function<void(std::int64_t, std::int64_t)>* body;
  std::atomic<std::int64_t> next{0};
};

ThreadPool::ThreadPool(int threads) {
  CHECK(threads >= 1, "{} threads", threads);
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

ThreadPool::ThreadPool(WorkCounter& counter, bool workspace) : counter_(&counter), workspace_(workspace) {}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& w : workers_) w.join();
}

void ThreadPool::drain(Job& job) {
  while (true) {
    const std::int64_t begin = job.next.fetch_add(job.grain);
    if (begin >= job.count) return;
    (*job.body)(begin, std::min(begin + job.grain, job.count));
  }
}

void ThreadPool::for_range(std::int64_t count, std::int64_t grain,
                           const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0 || counter_ != nullptr) return;
  const UnchargedScope uncharged;
  grain = std::max<std::int64_t>(grain, 1);
  if (workers_.empty() || count <= grain) {
    for (std::int64_t b = 0; b < count; b += grain) body(b, std::min(b + grain, count));
    return;
  }
  Job job{count, grain, &body, {}};
  {
    std::lock_guard lock(mutex_);
    job_ = &job;
    ++generation_;
    active_ = static_cast<int>(workers_.size());
  }
  wake_.notify_all();
  drain(job);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return active_ == 0; });
  job_ = nullptr;
}

void ThreadPool::work() {
  std::uint64_t seen = 0;
  while (true) {
    Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      job = job_;
    }
    drain(*job);
    {
      std::lock_guard lock(mutex_);
      if (--active_ == 0) done_.notify_one();
    }
  }
}

}  // namespace switchyard
