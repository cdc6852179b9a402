// TensorMover: one stored tensor made from another by several threads, slab by slab: a few rows are read,
// scaled, rounded, and placed where they belong. So memory is that of the result and a slab a thread.
#pragma once

#include <functional>
#include <span>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

// What is to become of a stored tensor.
struct TensorMove {
  Shape from;  // as it is stored
  Shape to;
  DType dtype = DType::f32;
  float factor = 1;  // on every element
  // As matrices the one is the other's transpose: `from` is [matrix_rows, rest]. Otherwise the elements
  // follow each other in the same order.
  bool transposed = false;
  std::int64_t matrix_rows = 0;
};

class TensorMover {
 public:
  explicit TensorMover(int threads) : pool_(threads) {}

  // Rows [begin, end) of the stored tensor's first dimension, f32 or bf16. Called by several threads at once;
  // what it throws ends the move and is thrown on.
  using ReadRows = std::function<Tensor(std::int64_t begin, std::int64_t end)>;
  Tensor move(const TensorMove& move, const ReadRows& read);

  // The blocks nearest to a dense matrix [inputs, rest] of whatever dims; false where a value is not finite.
  bool pack(const Tensor& dense, std::int64_t inputs, const Tensor& packed);

  // Hashes of a tensor cut as a checkpoint cuts it.
  std::vector<Chunk> chunks_of(const StoredTensor& tensor, const std::byte* data);

 private:
  ThreadPool pool_;
};

}  // namespace switchyard
