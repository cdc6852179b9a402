// FreeBlocks: blocks of memory that nobody has, by size, for who asks next. A training step asks for the same
// sizes again and again, and what gives memory out takes longer than a small kernel: the driver of a GPU,
// or the system for pinned memory. Any thread may call.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace switchyard {

class FreeBlocks {
 public:
  // The size that a block of `bytes` is to have: no less than `least`, and an eighth of a power of two or,
  // from 16 MiB on, 2 MiB in steps. So values whose rows change from step to step find blocks again.
  static std::size_t rounded(std::size_t bytes, std::size_t least);

  std::byte* take(std::size_t rounded_bytes);  // null: there is none of that size
  void give(std::byte* block, std::size_t rounded_bytes);
  std::vector<std::byte*> take_all();

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> blocks_;
};

}  // namespace switchyard
