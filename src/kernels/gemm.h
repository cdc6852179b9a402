// General matrix product with fp32 accumulation.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// C[b] = op(A[b]) · op(B[b]), plus C[b] when `accumulate`. Row-major; leading dimensions and strides in
// elements. A and B have the same dtype (f32 or bf16); C is f32 or bf16. Sums are fp32, rounded once when
// stored. Any of batch, m, n, k may be 0: with k = 0, C becomes zero, or stays as it is when `accumulate`. C
// must not overlap A or B. Bit-identical for any number of threads.
struct GemmArgs {
  std::int64_t batch = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;  // of A and B
  const void* a = nullptr;   // [m,k], or stored [k,m] when transpose_a
  bool transpose_a = false;
  std::int64_t lda = 0;
  std::int64_t stride_a = 0;  // elements from one batch entry to the next; 0 shares one matrix
  const void* b = nullptr;    // [k,n], or stored [n,k] when transpose_b
  bool transpose_b = false;
  std::int64_t ldb = 0;
  std::int64_t stride_b = 0;
  void* c = nullptr;  // [m,n]
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0;
  std::int64_t stride_c = 0;
  bool accumulate = false;
};

void gemm(ThreadPool& pool, const GemmArgs& args);

}  // namespace switchyard
