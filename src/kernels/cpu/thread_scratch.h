// Memory of one thread, kept between calls, because mapping it anew costs more than a small product.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace switchyard::cpu {

// Grows and never shrinks; asks for huge pages, since packed operands are walked in strides of kilobytes.
class ThreadScratch {
 public:
  template <typename T>
  T* at_least(std::int64_t count) {
    const std::size_t need = static_cast<std::size_t>(count) * sizeof(T);
    if (bytes_ < need) grow(need);
    return static_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };

  void grow(std::size_t need) {
    memory_.reset();
    const std::size_t unit = need < kHugePage / 4 ? 4096 : kHugePage;
    bytes_ = (need + unit - 1) / unit * unit;
    memory_.reset(std::aligned_alloc(unit, bytes_));
    if (memory_ == nullptr) {
      bytes_ = 0;
      throw std::bad_alloc();
    }
#if defined(MADV_HUGEPAGE)
    if (unit == kHugePage) madvise(memory_.get(), bytes_, MADV_HUGEPAGE);
#endif
  }

  std::unique_ptr<void, Free> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace switchyard::cpu
