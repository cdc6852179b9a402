// Packed weights fetched before products of few rows read them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::cpu {

// Prefetches the blocks of some columns that a loop will read soon. A thread's columns are often so few
// that the processor would not guess where the next row of blocks begins.
class BlocksAhead {
 public:
  BlocksAhead(const std::byte* first, std::int64_t row_bytes, std::int64_t bytes, std::int64_t rows)
      : row_(first), row_bytes_(row_bytes), bytes_(bytes), rows_(rows) {}

  // Fetches the next `bytes`, which divide a row's, and goes past them.
  inline __attribute__((always_inline)) void fetch(std::int64_t bytes) {
    if (rows_ == 0) return;
    for (std::int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(row_ + at_ + line, 0, 3);
    if ((at_ += bytes) < bytes_) return;
    at_ = 0;
    row_ += row_bytes_;
    --rows_;
  }

 private:
  const std::byte* row_;
  std::int64_t row_bytes_, bytes_, rows_, at_ = 0;
};

}  // namespace switchyard::cpu
