// BufferPool: recycles the memory blocks of tensors.
//
// A training step asks for the same blocks again and again; giving pages back to the system and taking them
// anew cost a third of a step's time. Blocks of 64 KiB and more are cut from one range of addresses, of which
// only touched pages cost memory. The pool takes the smallest free piece that is large enough and splits it;
// a released block merges with its free neighbours. So memory grows to the peak use plus fragmentation.
// Smaller blocks are rounded up to one of four sizes a doubling, are cut from pieces of that range, and wait
// in a free list for the next request of their size: the C library takes longer for an aligned block than a
// small op does.
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

  // Returns at least `bytes` bytes, 64-byte aligned, uninitialised. Error(runtime) when memory runs out.
  std::byte* take(std::size_t bytes);
  void give(std::byte* block, std::size_t bytes);  // `bytes`: the size passed to take()

  std::size_t in_use();
  std::size_t peak();
  void reset_peak();
  std::size_t extent();  // bytes of the range that were ever handed out
  std::size_t idle();    // bytes of the range that no tensor has now

 private:
  struct Free {
    Free* next;
  };

  std::byte* take_small(std::size_t bytes);  // null as for cut()
  std::byte* cut(std::size_t size);          // null: the range has no room, or was not granted
  void merge(std::byte* block, std::size_t size);
  bool in_range(const std::byte* block) const { return block >= range_ && block < range_ + reserved_; }
  void reserve();

  std::mutex mutex_;
  std::byte* range_ = nullptr;
  std::size_t reserved_ = 0, used_ = 0;  // bytes of the range: all; up to the end of the last block
  bool tried_ = false;
  std::map<std::byte*, std::size_t> free_;                     // pieces below used_, by address
  std::set<std::pair<std::size_t, std::byte*>> free_by_size_;  // the same pieces, by size
  std::array<Free*, 36> small_{};                              // free lists, by size class
  std::byte* fresh_ = nullptr;  // the rest of the piece that small blocks are cut from
  std::size_t fresh_bytes_ = 0;
  std::size_t in_use_ = 0, peak_ = 0;
};

}  // namespace switchyard
