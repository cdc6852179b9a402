// The memory in which a thread makes tensors that name none. It goes away once every op makes its tensors
// through its context.
#pragma once

#include <memory>

#include "core/device.h"

namespace switchyard {

// The innermost MemoryScope's, charged to nobody inside UnchargedScope; without a scope the host's.
Memory current_memory();
const std::shared_ptr<MemoryAccount>& current_account();
bool charging();  // false inside UnchargedScope

// What the scopes below have set, for a rank that goes on on another thread.
struct ThreadMemory {
  Memory memory;
  bool charged = true;
};
void swap_memory(ThreadMemory& with);  // this thread's

// While alive, tensors that this thread makes are of `memory`.
class MemoryScope {
 public:
  explicit MemoryScope(Memory memory);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Memory before_;
};

// While alive, buffers that this thread makes are charged to no rank: weights that ranks share, and the
// scratch space of pieces of a parallel loop. On the abstract device they still have no memory.
class UnchargedScope {
 public:
  UnchargedScope();
  ~UnchargedScope();
  UnchargedScope(const UnchargedScope&) = delete;
  UnchargedScope& operator=(const UnchargedScope&) = delete;

 private:
  bool before_;
};

}  // namespace switchyard
