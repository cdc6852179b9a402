// What the scratch of kernels (`Buffer(bytes)`) is charged to: the account of the rank that the thread runs.
// Tensors are charged by the memory that makes them (core/device.h).
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

// While alive, the scratch that this thread takes is charged as `memory` is.
class MemoryScope {
 public:
  explicit MemoryScope(Memory memory);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  Memory before_;
};

// While alive, the scratch that this thread takes is charged to no rank: that of pieces of a parallel loop.
// On the abstract device it still has no memory.
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
