#include "core/memory_account.h"

#include <utility>

namespace switchyard {
namespace {

// A thread runs one rank at a time; everything a rank owns is reached from here or from its Context.
Charging& state() {
  thread_local Charging instance;
  return instance;
}

}  // namespace

void MemoryAccount::charge(std::int64_t bytes) {
  const std::int64_t now = in_use_.fetch_add(bytes) + bytes;
  std::int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  if (now > peak && place_) peak_place_ = place_();
}

const std::shared_ptr<MemoryAccount>& current_account() {
  return state().account;
}

bool charging() {
  return state().on;
}

void swap_charging(Charging& with) {
  std::swap(state(), with);
}

AccountScope::AccountScope(std::shared_ptr<MemoryAccount> account)
    : before_(std::exchange(state().account, std::move(account))) {}

AccountScope::~AccountScope() {
  state().account = std::move(before_);
}

UnchargedScope::UnchargedScope() : before_(std::exchange(state().on, false)) {}

UnchargedScope::~UnchargedScope() {
  state().on = before_;
}

}  // namespace switchyard
