// General matrix product with fp32 accumulation.
#pragma once

#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// C[i] = op(A[i]) · op(B[i]), plus C[i] when `accumulate`, for every i of the batch. A and B have the same
// dtype (f32 or bf16); C is f32 or bf16. Sums are fp32, rounded once when stored. Any dim may be 0: with k =
// 0, C becomes zero, or stays as it is when `accumulate`. C must not overlap A or B. Bit-identical for any
// number of threads.
//
// Views have two dims, or three where the first is the batch (a stride of 0 there shares one matrix). Rows
// may be any distance apart; elements of a row are neighbours.
//
// B may be packed, [batch, k/32, n/16] blocks (kernels/packed/packed_block.h), or of a k-quant [batch, k/256,
// n/16]; when transpose_b, the stored weight is [n,k] and its blocks [batch, n/32, k/16]. A is not transposed
// then. m <= 8: B is dequantised in registers to float32, but for bfloat16 rows and integer formats
// (integers.h). Else B is dequantised to A's dtype, then multiplied.
struct GemmArgs {
  TensorView a;  // [batch, m, k], or [batch, k, m] when transpose_a
  TensorView b;  // [batch, k, n], or [batch, n, k] when transpose_b
  TensorView c;  // [batch, m, n]
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

void gemm(ThreadPool& pool, const GemmArgs& args);

// C_i = op(A) · op(B_i): products of one left operand, as q, k and v are. They run together: few rows are
// converted once, and a GPU starts one kernel where one takes them all. Views have two dims.
struct GemmEachArgs {
  struct Right {
    TensorView b, c;  // as those of GemmArgs; all c of one dtype
  };
  TensorView a;
  std::span<const Right> right;
  bool transpose_a = false;
  bool transpose_b = false;
};

void gemm_each(ThreadPool& pool, const GemmEachArgs& args);

// C = Σ op(A_i) · op(B_i), in the order of terms: the gradient of what gemm_each multiplies. A GPU stores C
// after every four terms, a CPU after each. No B is packed. Views have two dims.
struct GemmSumArgs {
  struct Term {
    TensorView a, b;
  };
  std::span<const Term> terms;  // one at least
  TensorView c;
  bool transpose_a = false;
  bool transpose_b = false;
};

void gemm_sum(ThreadPool& pool, const GemmSumArgs& args);

}  // namespace switchyard
