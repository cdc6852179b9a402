#include "core/current_memory.h"

#include <utility>

namespace switchyard {
namespace {

ThreadMemory& state() {
  thread_local ThreadMemory instance;
  return instance;
}

}  // namespace

Memory current_memory() {
  const ThreadMemory& now = state();
  return now.charged ? now.memory : Memory(now.memory.device(), nullptr);
}

const std::shared_ptr<MemoryAccount>& current_account() {
  return state().memory.account();
}

bool charging() {
  return state().charged;
}

void swap_memory(ThreadMemory& with) {
  std::swap(state(), with);
}

MemoryScope::MemoryScope(Memory memory) : before_(std::exchange(state().memory, std::move(memory))) {}

MemoryScope::~MemoryScope() {
  state().memory = std::move(before_);
}

UnchargedScope::UnchargedScope() : before_(std::exchange(state().charged, false)) {}

UnchargedScope::~UnchargedScope() {
  state().charged = before_;
}

}  // namespace switchyard
