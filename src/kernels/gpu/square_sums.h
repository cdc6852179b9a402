// Sums of squares in double: of each block, and then of the blocks. The order depends on sizes alone.
#pragma once

#include "kernels/gpu/code.h"
#include "kernels/gpu/workspace.h"

namespace switchyard::gpu {

// The threads of a block that makes such a sum, and the elements that it takes.
constexpr int kSquareThreads = 256;
constexpr std::int64_t kSquaresOfBlock = 4096;

// The block's sum of what its threads have, in sums[block_index()].
GPU_FUNCTION void put_block_sum(double squares, double* sums) {
  GPU_SHARED(double, scratch, kSquareThreads / kWarp);
  squares = block_sum(squares, scratch);
  if (thread_index() == 0) sums[block_index()] = squares;
}

// Where the blocks of `count` elements put their sums, in memory as `like` has.
class BlockSums {
 public:
  BlockSums(const TensorView& like, std::int64_t count)
      : blocks_(divide_up(count, kSquaresOfBlock)),
        sums_(like, static_cast<std::size_t>(blocks_ + 1) * sizeof(double)) {}

  Launch blocks() const { return {.blocks = blocks_, .threads = kSquareThreads}; }
  double* data() const { return sums_.data<double>(); }
  // Their sum; waits for the blocks.
  double total() const;

 private:
  const std::int64_t blocks_;
  const Workspace sums_;
};

}  // namespace switchyard::gpu
