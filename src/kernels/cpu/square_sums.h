// Sums of squares of long arrays: in double, in an order that depends on the length alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"

namespace switchyard {

// The sum of one piece, as interleaved sums: element begin + i of the piece belongs to sum i mod kCount.
// Squares of floats are exact in double, so each sum has the same bits however its terms are multiplied.
struct SquareSums {
  static constexpr std::int64_t kCount = 32;
  alignas(64) double sums[kCount] = {};

  double total() const {
    double sum = 0;
    for (const double s : sums) sum += s;
    return sum;
  }
};

inline constexpr std::int64_t kSquarePiece = 65536;  // elements: long against handing a piece out

// Calls piece(begin, end, sums) for the pieces of [0, count) and adds their totals in order.
template <typename Piece>
double sum_pieces(ThreadPool& pool, std::int64_t count, const Piece& piece) {
  std::vector<double> totals(static_cast<std::size_t>((count + kSquarePiece - 1) / kSquarePiece));
  pool.for_range(count, kSquarePiece, [&](std::int64_t begin, std::int64_t end) {
    SquareSums sums;
    piece(begin, end, sums);
    totals[static_cast<std::size_t>(begin / kSquarePiece)] = sums.total();
  });
  double total = 0;
  for (const double sum : totals) total += sum;
  return total;
}

}  // namespace switchyard
