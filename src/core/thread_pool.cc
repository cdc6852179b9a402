#include "core/thread_pool.h"

#include <algorithm>

#include "core/current_memory.h"

namespace switchyard {

ThreadPool::ThreadPool(int threads) : own_(std::make_unique<Workers>(threads)), workers_(own_.get()) {
  own_->enter();
}

int ThreadPool::threads() const {
  if (workers_ == nullptr) return 1;
  const int cores = workers_->cores(), ranks = workers_->ranks();
  return ranks == 1 ? cores : std::min(cores, std::max(2, 2 * cores / ranks));
}

void ThreadPool::for_range(std::int64_t count, std::int64_t grain,
                           const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0 || workers_ == nullptr) return;
  const UnchargedScope uncharged;
  workers_->run(count, std::max<std::int64_t>(grain, 1), body);
}

}  // namespace switchyard
