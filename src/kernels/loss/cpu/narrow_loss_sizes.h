// The sizes that cross_entropy_narrow_simd.cc works with, the same for every instruction set.
#pragma once

#include <algorithm>

#include "kernels/loss/cross_entropy_problem.h"

namespace switchyard::cpu {

struct NarrowLossSizes {
  static constexpr std::int64_t kRows = 64, kEntries = 64;  // of a tile
  static constexpr std::int64_t kChunks = 64;               // of the vocabulary, at most
  static constexpr std::int64_t kWidth = 32;                // widths are padded to it: the widest panel

  explicit NarrowLossSizes(const CrossEntropyProblem& a)
      : block(padded(std::min(a.rows, a.rows_at_once), kRows)),
        blocks((a.rows + block - 1) / block),
        tiles((a.vocab + kEntries - 1) / kEntries),
        chunk((tiles + kChunks - 1) / kChunks),
        chunks((tiles + chunk - 1) / chunk),
        width(padded(a.emb, kWidth)) {}

  // Floats.
  std::int64_t logits() const { return tiles * kEntries * block; }
  std::int64_t hidden() const { return block * width; }
  std::int64_t dweight() const { return blocks == 1 ? 0 : tiles * kEntries * width; }
  std::size_t bytes() const {
    const std::int64_t floats =
        logits() + (2 + chunks) * hidden() + 2 * chunks * block + 2 * block + dweight();
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  std::int64_t block;   // rows whose logits wait, padded
  std::int64_t blocks;  // of rows
  std::int64_t tiles;   // of the vocabulary
  std::int64_t chunk;   // tiles of a chunk
  std::int64_t chunks;
  std::int64_t width;  // of the model, padded

 private:
  static std::int64_t padded(std::int64_t x, std::int64_t unit) { return (x + unit - 1) / unit * unit; }
};

}  // namespace switchyard::cpu
