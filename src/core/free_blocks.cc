#include "core/free_blocks.h"

#include <algorithm>
#include <bit>

namespace switchyard {

std::size_t FreeBlocks::rounded(std::size_t bytes, std::size_t least) {
  constexpr std::size_t kLargestPart = std::size_t{2} << 20;
  if (bytes <= least) return least;
  const std::size_t part = std::min(std::bit_floor(bytes) / 8, kLargestPart);
  return (bytes + part - 1) / part * part;
}

std::byte* FreeBlocks::take(std::size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(rounded_bytes);
  if (found == blocks_.end() || found->second.empty()) return nullptr;
  std::byte* const block = found->second.back();
  found->second.pop_back();
  return block;
}

void FreeBlocks::give(std::byte* block, std::size_t rounded_bytes) {
  const std::lock_guard lock(mutex_);
  blocks_[rounded_bytes].push_back(block);
}

std::vector<std::byte*> FreeBlocks::take_all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::byte*> all;
  for (auto& [bytes, blocks] : blocks_) all.insert(all.end(), blocks.begin(), blocks.end());
  blocks_.clear();
  return all;
}

}  // namespace switchyard
