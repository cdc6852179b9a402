// Memory for tensors and packed operands. Blocks of at least a huge page ask for huge pages, since kernels
// walk the rows of a matrix in strides of kilobytes (measured: grouped products a third faster).
#pragma once

#include <stdlib.h>

#include <cstddef>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace switchyard {

constexpr std::size_t kLineBytes = 64, kHugePageBytes = std::size_t{2} << 20;

// Returns at least `bytes` bytes (more than 0), aligned to a cache line; null when memory runs out. Release
// it by std::free.
inline void* allocate_aligned(std::size_t bytes) {
  const std::size_t unit = bytes < kHugePageBytes ? kLineBytes : kHugePageBytes;
  void* block = nullptr;
  if (posix_memalign(&block, unit, bytes) != 0) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (unit == kHugePageBytes) madvise(block, bytes, MADV_HUGEPAGE);
#endif
  return block;
}

}  // namespace switchyard
