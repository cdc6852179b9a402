#include "core/memory_account.h"

namespace switchyard {
void MemoryAccount::charge(std::int64_t bytes) {
  const std::int64_t now = in_use_.fetch_add(bytes) + bytes;
  std::int64_t peak = peak_.load();
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  if (now > peak && place_) peak_place_ = place_();
}

}  // namespace switchyard
