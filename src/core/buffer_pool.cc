#include "core/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <new>

#include "core/address_limit.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/huge_pages.h"
#include "core/short_lock.h"

#if defined(__linux__)
#include <unistd.h>
#endif

namespace switchyard {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__linux__)
constexpr bool kRecycles = false;  // a recycled block would hide a use after free
#else
constexpr bool kRecycles = true;
#endif
constexpr std::size_t kLarge = 64 * 1024;
constexpr std::size_t kUnit = 4096;  // large blocks are whole pages
constexpr std::size_t kPieceForSmall = 256 * 1024;

std::size_t rounded(std::size_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

struct SizeClass {
  std::size_t index, bytes;
};

// 64, 128, 192, 256, then 5, 6, 7 and 8 quarters of 256, of 512 and so on up to kLarge.
SizeClass size_class(std::size_t bytes) {
  if (bytes <= 256) {
    const std::size_t lines = std::max<std::size_t>(1, (bytes + 63) / 64);
    return {lines - 1, lines * 64};
  }
  const auto width = static_cast<std::size_t>(std::bit_width(bytes - 1));
  const std::size_t quarters = (bytes - 1) >> (width - 3);  // 4 to 7
  return {4 * (width - 8) + quarters - 4, (quarters + 1) << (width - 3)};
}

}  // namespace

// Reserves as many addresses as the machine has memory, but at most half of what a limit leaves: stacks, mapped files and
// the C library need some, too, and blocks for which the range has no room come from there.
void BufferPool::reserve() {
  tried_ = true;
#if defined(__linux__)
  const auto pages = static_cast<std::size_t>(std::max(0L, sysconf(_SC_PHYS_PAGES)));
  std::size_t bytes = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (const auto limit = address_limit())
    bytes = std::min(bytes, static_cast<std::size_t>(limit->left / 2) / kHugePageBytes * kHugePageBytes);
  if (bytes == 0) return;
  void* range =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return;
#if defined(MADV_HUGEPAGE)
  madvise(range, bytes, MADV_HUGEPAGE);
#endif
  spread_over_nodes(range, bytes);
  range_ = static_cast<std::byte*>(range);
  reserved_ = bytes;
#endif
}

BufferPool::~BufferPool() {
#if defined(__linux__)
  if (range_ != nullptr) munmap(range_, reserved_);
#endif
}

std::byte* BufferPool::take(std::size_t bytes) {
  {
    const auto lock = lock_short(mutex_);
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    if (kRecycles) {
      if (std::byte* block = bytes < kLarge ? take_small(bytes) : cut(rounded(bytes))) return block;
    }
  }
  auto* block = static_cast<std::byte*>(allocate_aligned(std::max<std::size_t>(bytes, 1)));
  if (block != nullptr) return block;
  std::lock_guard lock(mutex_);
  in_use_ -= bytes;
  const auto limit = address_limit();
  fail_runtime("[memory] out of memory: {} bytes asked, {} in use{}", bytes, in_use_,
               limit ? fmt::format("; {} leaves {}", limit->name, limit->left) : "");
}

std::byte* BufferPool::take_small(std::size_t bytes) {
  const auto [index, size] = size_class(bytes);
  if (Free* const block = small_[index]) {
    small_[index] = block->next;
    return reinterpret_cast<std::byte*>(block);
  }
  if (fresh_bytes_ < size) {
    std::byte* const piece = cut(kPieceForSmall);  // what is left of the one before stays unused
    if (piece == nullptr) return nullptr;
    fresh_ = piece;
    fresh_bytes_ = kPieceForSmall;
  }
  std::byte* const block = fresh_;
  fresh_ += size;
  fresh_bytes_ -= size;
  return block;
}

std::byte* BufferPool::cut(std::size_t size) {
  const auto fit = free_by_size_.lower_bound({size, nullptr});
  if (fit != free_by_size_.end()) {
    const auto [free, block] = *fit;
    free_by_size_.erase(fit);
    free_.erase(block);
    if (free > size) {
      free_.emplace(block + size, free - size);
      free_by_size_.emplace(free - size, block + size);
    }
    return block;
  }
  if (!tried_) reserve();
  // From the end of the range, with the free piece that ends there.
  std::size_t begin = used_;
  if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == range_ + used_) {
    begin -= free_.rbegin()->second;
  }
  if (reserved_ - begin < size) return nullptr;
  if (begin < used_) {
    free_by_size_.erase({free_.rbegin()->second, free_.rbegin()->first});
    free_.erase(std::prev(free_.end()));
  }
  used_ = begin + size;
  return range_ + begin;
}

void BufferPool::merge(std::byte* block, std::size_t size) {
  const auto drop = [&](std::map<std::byte*, std::size_t>::iterator at) {
    free_by_size_.erase({at->second, at->first});
    free_.erase(at);
  };
  auto after = free_.lower_bound(block);
  if (after != free_.end() && block + size == after->first) {
    size += after->second;
    drop(after);
  }
  auto before = free_.lower_bound(block);
  if (before != free_.begin() && (--before)->first + before->second == block) {
    block = before->first;
    size += before->second;
    drop(before);
  }
  free_.emplace(block, size);
  free_by_size_.emplace(size, block);
}

void BufferPool::give(std::byte* block, std::size_t bytes) {
  {
    const auto lock = lock_short(mutex_);
    in_use_ -= bytes;
    if (in_range(block) && bytes < kLarge) {
      Free*& first = small_[size_class(bytes).index];
      first = new (block) Free{first};
      return;
    }
    if (in_range(block)) {
      merge(block, rounded(bytes));
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

std::size_t BufferPool::idle() {
  std::lock_guard lock(mutex_);
  return reserved_ - std::min(in_use_, reserved_);
}

std::size_t BufferPool::extent() {
  std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace switchyard
