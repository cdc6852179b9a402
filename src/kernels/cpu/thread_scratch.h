// Memory of one thread, kept between calls, because mapping it anew costs more than a small product.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "core/huge_pages.h"

namespace switchyard::cpu {

// Grows and never shrinks.
class ThreadScratch {
 public:
  template <typename T>
  T* at_least(std::int64_t count) {
    const std::size_t need = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes_ < need) grow(need);
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  void grow(std::size_t need) {
    memory_.reset();
    // Nearly a huge page of small pages would be slower than one.
    bytes_ = need > kHugePageBytes / 4 ? std::max(need, kHugePageBytes) : need;
    memory_.reset(allocate_aligned(bytes_));
    if (memory_ != nullptr) return;
    bytes_ = 0;
    throw std::bad_alloc();
  }

  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace switchyard::cpu
