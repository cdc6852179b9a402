// TensorMover: converts a stored tensor into another with several threads, slab by slab: reads a few rows,
// scales, rounds and places them. So memory is the result and one slab for each thread.
#pragma once

#include <functional>
#include <span>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

// The conversion of a stored tensor.
struct TensorMove {
  Shape from;  // the stored shape
  Shape to;
  DType dtype = DType::f32;
  float factor = 1;  // multiplies every element
  // Transposes the tensor as a matrix: `from` is [matrix_rows,
  // rest]. Otherwise the elements keep their order.
  bool transposed = false;
  std::int64_t matrix_rows = 0;
};

class TensorMover {
 public:
  explicit TensorMover(int threads) : pool_(threads) {}

  // Reads rows [begin, end) of the stored tensor's first dim, f32 or bf16. Several threads call it at once;
  // an exception ends the move and is rethrown.
  using ReadRows = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  Tensor move(const TensorMove& move, const ReadRows& read);

  // Packs a dense matrix [inputs, rest] (any dims) into the nearest blocks; false when a value is not finite.
  bool pack(const Tensor& dense, std::int64_t inputs, const Tensor& packed);

  // Hashes of a tensor, in the chunks that a checkpoint uses.
  std::vector<Chunk> chunks_of(const StoredTensor& tensor, const std::byte* data);

 private:
  ThreadPool pool_;
};

}  // namespace switchyard
