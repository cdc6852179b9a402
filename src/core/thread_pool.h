// ThreadPool: one rank's way to split index ranges over threads: those that the ranks of a process share
// (core/workers.h), or its own.
//
// A pool may be *abstract*: it runs nothing. Kernels hand it a description of their work instead (`skips`),
// and loops over data (`for_range`) return at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/work.h"
#include "core/workers.h"

namespace switchyard {

// The memory that kernels work in, which an abstract pool may have them take.
enum class WorkspaceOf : std::uint8_t {
  none,
  cpu,  // of this machine's processor
  gpu,  // of a GPU, whose kernels (kernels/*/cuda/) are called and start nothing
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // of its own; >= 1, the calling thread counts as one of them
  // Of the calling thread, which stands in a RankScope of `workers`.
  explicit ThreadPool(Workers& workers) : workers_(&workers) {}
  // Abstract: counts work in `counter`; but for a GPU, where kernels that count in a run may count nothing.
  ThreadPool(WorkCounter& counter, WorkspaceOf workspace) : counter_(&counter), workspace_(workspace) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // For how many threads a loop should have pieces: all cores of a single rank; for several ranks twice their
  // share, as some may wait for others.
  int threads() const;
  // The same for a loop that the other ranks of the process wait for.
  int cores() const { return workers_ == nullptr ? 1 : workers_->cores(); }

  // True when the pool is abstract: the work is counted, and the kernel returns without doing it. False for a
  // GPU: the kernel goes on to that of the GPU, which takes memory and returns.
  bool skips(const Work& work) const {
    if (counter_ != nullptr) counter_->count(work);
    return counter_ != nullptr && workspace_ != WorkspaceOf::gpu;
  }
  bool counts_workspace() const { return workspace_ == WorkspaceOf::cpu; }

  // Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long but the last.
  // Returns when all are done. The pieces are handed out dynamically, so a result must not depend on which
  // thread ran a piece. Not reentrant: a body must not call for_range on the same pool. Bodies must not
  // throw; buffers they make are charged to no rank.
  void for_range(std::int64_t count, std::int64_t grain,
                 const std::function<void(std::int64_t, std::int64_t)>& body);

 private:
  WorkCounter* counter_ = nullptr;
  WorkspaceOf workspace_ = WorkspaceOf::none;
  std::unique_ptr<Workers> own_;
  Workers* workers_ = nullptr;  // null: abstract
};

}  // namespace switchyard
