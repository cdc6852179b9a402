#include "core/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 64;
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kSmallestKept = ~std::size_t{0};  // a recycled block would hide a use after free
#else
constexpr std::size_t kSmallestKept = 64 * 1024;
#endif

// Sizes are rounded up to a sixteenth of their power of two (never 0), so that nearly equal ones share
// blocks.
std::size_t size_class(std::size_t bytes) {
  const std::size_t step = std::max(kAlignment, std::bit_floor(bytes | 1) / 16);
  return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

// Kernels walk large buffers tile by tile, each on other pages: small pages cost attention at 4096 positions
// a tenth. Below twice the size of a huge page there may be none inside.
void ask_for_huge_pages(std::byte* block, std::size_t size) {
  constexpr std::uintptr_t kHugePage = 2 << 20;
  if (size < 2 * kHugePage) return;
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  const std::uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (address + size) / kHugePage * kHugePage;
  // A refusal is no error: the buffer is as good, on small pages.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

std::byte* BufferPool::take(std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  {
    std::lock_guard lock(mutex_);
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    limit_ = std::max(limit_, in_use_);
    if (std::byte* block = size >= kSmallestKept ? recycled(size) : nullptr) return block;
    shrink(limit_ - in_use_);
  }
  auto* block = static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
  if (block != nullptr) {
    ask_for_huge_pages(block, size);
    return block;
  }
  std::lock_guard lock(mutex_);
  in_use_ -= bytes;
  fail_runtime("[memory] out of memory: {} bytes asked, {} in use", bytes, in_use_);
}

std::byte* BufferPool::recycled(std::size_t size) {
  const auto at = kept_.find(size);
  if (at == kept_.end()) return nullptr;
  std::byte* block = at->second.back();
  at->second.pop_back();
  if (at->second.empty()) kept_.erase(at);
  kept_bytes_ -= size;
  return block;
}

void BufferPool::shrink(std::size_t most) {
  while (kept_bytes_ > most) {
    const auto largest = std::prev(kept_.end());
    std::free(largest->second.back());
    kept_bytes_ -= largest->first;
    largest->second.pop_back();
    if (largest->second.empty()) kept_.erase(largest);
  }
}

void BufferPool::give(std::byte* block, std::size_t bytes) {
  const std::size_t size = size_class(bytes);
  {
    std::lock_guard lock(mutex_);
    in_use_ -= bytes;
    if (size >= kSmallestKept && in_use_ + kept_bytes_ + size <= limit_) {
      kept_[size].push_back(block);
      kept_bytes_ += size;
      return;
    }
  }
  std::free(block);
}

std::size_t BufferPool::in_use() {
  std::lock_guard lock(mutex_);
  return in_use_;
}

std::size_t BufferPool::peak() {
  std::lock_guard lock(mutex_);
  return peak_;
}

void BufferPool::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = in_use_;
}

}  // namespace switchyard
