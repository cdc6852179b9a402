// BufferPool: memory blocks of tensors, recycled.
//
// A training step asks for the same blocks again and again; giving pages back to the system and taking them
// anew cost a third of a step's time. Blocks of 64 KiB and more are cut from one range of addresses, of which
// only touched pages cost memory: the smallest free piece that is large enough, split, and merged with its
// free neighbours when given back. So memory grows to the most ever in use, plus what lies between blocks.
// Smaller ones are rounded up to one of four sizes a doubling, are cut from pieces of that range, and wait in
// a list for the next of their size: the C library takes longer for a block that is aligned than a small op
// does.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace switchyard {

class BufferPool {
 public:
  BufferPool() = default;
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // A block of at least `bytes`, 64-byte aligned, uninitialised. Error(runtime) when there is no memory.
  std::byte* take(std::size_t bytes);
  void give(std::byte* block, std::size_t bytes);  // the size it was taken with

  std::size_t in_use();
  std::size_t peak();
  void reset_peak();
  std::size_t extent();  // bytes of the range that were ever handed out

 private:
  struct Free {
    Free* next;
  };

  std::byte* take_small(std::size_t bytes);  // null as cut()
  std::byte* cut(std::size_t size);          // null: the range has no room, or could not be had
  void merge(std::byte* block, std::size_t size);
  bool in_range(const std::byte* block) const { return block >= range_ && block < range_ + reserved_; }
  void reserve();

  std::mutex mutex_;
  std::byte* range_ = nullptr;
  std::size_t reserved_ = 0, used_ = 0;  // of the range: all; up to the last block ever cut
  bool tried_ = false;
  std::map<std::byte*, std::size_t> free_;                     // pieces below used_, by address
  std::set<std::pair<std::size_t, std::byte*>> free_by_size_;  // the same
  std::array<Free*, 36> small_{};                              // by the class of their size
  std::byte* fresh_ = nullptr;  // what is left of the piece that small ones come from
  std::size_t fresh_bytes_ = 0;
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace switchyard
