// General matrix product with fp32 accumulation.
#pragma once

#include <span>
#include <vector>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

struct GemmProblem;

// C[i] = op(A[i]) · op(B[i]), plus C[i] when `accumulate`, for every i of the batch. A and B have the same
// dtype (f32 or bf16); C is f32 or bf16. Sums are fp32, rounded once when stored. Any dim may be 0: with k =
// 0, C becomes zero, or stays as it is when `accumulate`. C must not overlap A or B. Bit-identical for any
// number of threads.
//
// Views have two dims, or three where the first is the batch (a stride of 0 there shares one matrix). Rows
// may be any distance apart; elements of a row are neighbours.
//
// B may be packed, [batch, k/32, n/16] blocks (kernels/packed_block.h); then neither operand is transposed.
// Few rows are multiplied by its values in float32; for more they are first rounded to A's dtype, and on a
// GPU for all, which unpacks B first.
struct GemmArgs {
  TensorView a;  // [batch, m, k], or [batch, k, m] when transpose_a
  TensorView b;  // [batch, k, n], or [batch, n, k] when transpose_b
  TensorView c;  // [batch, m, n]
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

void gemm(ThreadPool& pool, const GemmArgs& args);

// While alive, products of the CPU that this thread asks for and that read few rows wait for run(), which
// carries them out at once: threads meet once for all of them, and rows that several share are converted
// once. Until then nobody may
// read their results, and what they read must stay where it is. Scopes do not nest.
class GemmsTogether {
 public:
  explicit GemmsTogether(ThreadPool& pool);
  ~GemmsTogether();  // what was not run is not computed
  GemmsTogether(const GemmsTogether&) = delete;
  GemmsTogether& operator=(const GemmsTogether&) = delete;
  void run();

 private:
  friend void gemm(ThreadPool& pool, const GemmArgs& args);
  bool take(std::span<const GemmProblem> problems);

  ThreadPool& pool_;
  std::vector<GemmProblem> waiting_;
};

}  // namespace switchyard
