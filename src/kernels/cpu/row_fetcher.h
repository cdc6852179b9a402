// Fetches the lines of some stored rows of a matrix in the order of their addresses: memory that is fetched
// as it is used, a line of each of several rows in turn, comes at half the speed.
#pragma once

#include <algorithm>
#include <cstdint>

namespace switchyard::cpu {

template <typename T>
class RowFetcher {
 public:
  // `rows` rows of `columns` elements, `stride` elements apart; rows <= 0: none.
  RowFetcher(const T* first, std::int64_t stride, std::int64_t rows, std::int64_t columns)
      : line_(first),
        lines_((columns + kLine - 1) / kLine),
        next_row_(stride - (lines_ - 1) * kLine),
        rows_(lines_ > 0 ? std::max<std::int64_t>(0, rows) : 0) {}

  // Up to `count` lines, into L2: L1 waits for few lines at a time (measured on Zen 4: a third slower).
  void fetch(std::int64_t count) {
    for (; count > 0 && rows_ > 0; --count) {
      __builtin_prefetch(line_, 0, 2);
      if (++at_ < lines_) {
        line_ += kLine;
        continue;
      }
      line_ += next_row_;
      at_ = 0;
      --rows_;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64 / sizeof(T);
  const T* line_;
  std::int64_t lines_, next_row_, rows_, at_ = 0;
};

}  // namespace switchyard::cpu
