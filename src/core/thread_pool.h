// ThreadPool: splits one rank's index ranges over threads: the threads that the ranks of a process share
// (core/workers.h), or threads of its own.
//
// A pool may be *abstract*: it runs nothing. Kernels pass it a description of their work instead (`skips`),
// and loops over data (`for_range`) return at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/work.h"
#include "core/workers.h"

namespace switchyard {

// The kind of kernels whose workspace an abstract pool lets them allocate.
enum class WorkspaceOf : std::uint8_t {
  none,
  cpu,  // kernels of this machine's processor
  gpu,  // kernels of a GPU (kernels/*/cuda/), which are called and start nothing
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // with its own threads; >= 1, including the calling thread
  // Uses the threads of `workers`; the calling thread must be inside a RankScope of it.
  explicit ThreadPool(Workers& workers) : workers_(&workers) {}
  // Abstract: counts work in `counter`, except for a GPU, whose kernels may count nothing.
  ThreadPool(WorkCounter& counter, WorkspaceOf workspace) : counter_(&counter), workspace_(workspace) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // The number of threads to split a loop for: all cores for a single rank; for several ranks twice a rank's
  // share, as some ranks may wait for others.
  int threads() const;
  // The number of threads for a loop that the other ranks of the process wait for.
  int cores() const { return workers_ == nullptr ? 1 : workers_->cores(); }

  // True when the pool is abstract: it counts the work, and the kernel returns without doing it. False for a
  // GPU: the kernel continues to the GPU's kernel, which allocates memory and returns.
  bool skips(const Work& work) const {
    if (counter_ != nullptr) counter_->count(work);
    return counter_ != nullptr && workspace_ != WorkspaceOf::gpu;
  }
  bool counts_workspace() const { return workspace_ == WorkspaceOf::cpu; }

  // Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long except the
  // last, and returns when all are done. Pieces are assigned to threads dynamically, so a result must not
  // depend on the thread that ran a piece. Not reentrant: a body must not call for_range on the same pool.
  // An exception of a body comes out when all pieces are done; buffers they allocate are charged to no rank.
  void for_range(std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  WorkCounter* counter_ = nullptr;
  WorkspaceOf workspace_ = WorkspaceOf::none;
  std::unique_ptr<Workers> own_;
  Workers* workers_ = nullptr;  // null: abstract
};

}  // namespace switchyard
