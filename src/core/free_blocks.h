// FreeBlocks: free memory blocks by size, kept for reuse. A training step asks for the same sizes again and
// again, and the allocator behind it (the driver of a GPU, or the system for pinned memory) takes longer than
// a small kernel. Any thread may call it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace switchyard {

class FreeBlocks {
 public:
  // The size to allocate for a block of `bytes`: at least `least`, rounded up in steps of an eighth of a
  // power of two or, from 16 MiB on, 2 MiB. So arrays whose row count changes from step to step reuse blocks.
  static std::size_t rounded(std::size_t bytes, std::size_t least);

  std::byte* take(std::size_t rounded_bytes);  // null: no free block of that size
  void give(std::byte* block, std::size_t rounded_bytes);
  std::vector<std::byte*> take_all();

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> blocks_;
};

}  // namespace switchyard
