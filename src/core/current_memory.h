// The account that the scratch of kernels (`Buffer(bytes)`) is charged to: the account of the rank that the
// thread runs. Tensors are charged by the Memory that makes them (core/device.h).
#pragma once

#include <memory>

#include "core/device.h"

namespace switchyard {

// The memory of the innermost MemoryScope (uncharged inside UnchargedScope); without a scope the host's.
Memory current_memory();
const std::shared_ptr<MemoryAccount>& current_account();
bool charging();  // false inside UnchargedScope

// The state set by the scopes below, saved when a rank moves to another thread.
struct ThreadMemory {
  Memory memory;
  bool charged = true;
};
void swap_memory(ThreadMemory& with);  // swaps it with this thread's state

// While alive, scratch that this thread allocates is charged to `memory`'s account.
class MemoryScope {
 public:
  explicit MemoryScope(Memory memory);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Memory before_;
};

// While alive, scratch that this thread allocates is charged to no rank: used for pieces of a parallel loop.
// On the abstract device the scratch still has no memory.
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
