// LaunchPool: the pool for ops that a GPU's kernel starts. It runs no loops, and a plan counts the kernel
// that starts them, not the ops by themselves.
#pragma once

#include "core/thread_pool.h"

namespace switchyard::gpu {

class LaunchPool {
 public:
  operator ThreadPool&() { return pool_; }

 private:
  struct NoCounter : WorkCounter {
    void count(const Work&) override {}
  };
  NoCounter counter_;
  ThreadPool pool_{counter_, WorkspaceOf::gpu};
};

}  // namespace switchyard::gpu
