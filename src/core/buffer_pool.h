// BufferPool: memory blocks of tensors, recycled.
//
// A training step asks for the same sizes again and again; giving pages back to the system and taking them
// anew cost a third of a step's time. Blocks of 64 KiB and more are kept when freed and handed out again for
// the same size. What is in use plus what is kept never exceeds the most that was ever in use, so recycling
// does not raise the peak.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace switchyard {

class BufferPool {
 public:
  // A block of at least `bytes`, 64-byte aligned, uninitialised. Error(runtime) when there is no memory.
  std::byte* take(std::size_t bytes);
  void give(std::byte* block, std::size_t bytes);  // the size it was taken with

  std::size_t in_use();
  std::size_t peak();
  void reset_peak();

 private:
  std::byte* recycled(std::size_t size);
  void shrink(std::size_t most);  // frees kept blocks, largest first, until at most `most` bytes are kept

  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t in_use_ = 0, peak_ = 0;
  std::size_t limit_ = 0;  // the most ever in use; unlike peak_ never reset
};

}  // namespace switchyard
