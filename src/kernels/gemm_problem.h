// What gemm and the grouped products share: one matrix product cut into independent blocks of C.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "kernels/dispatch.h"

namespace switchyard {

// C = op(A) · op(B) (+ bias) (+ C when accumulate), fields as in GemmArgs; bias is [n] of `dtype` or null.
struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;
  const void* a = nullptr;
  bool transpose_a = false;
  std::int64_t lda = 0;
  const void* b = nullptr;
  bool transpose_b = false;
  std::int64_t ldb = 0;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0;
  bool accumulate = false;
  const void* bias = nullptr;
};

// The block C[row_begin:row_end, column_begin:column_end].
struct GemmBlock {
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t column_begin;
  std::int64_t column_end;
};

// Computes one block. An element's value must not depend on the block that it is computed in.
using GemmBlockKernel = void(const GemmProblem& problem, const GemmBlock& block);

// Computes every problem; all have the dtypes of the first. `op` names the caller in dispatch messages.
void run_gemms(ThreadPool& pool, const char* op, std::span<const GemmProblem> problems);

namespace ref {
GemmBlockKernel gemm_block;
}
namespace cpu {
GemmBlockKernel gemm_block_avx2;    // f32 and bf16
GemmBlockKernel gemm_block_avx512;  // f32 and bf16
GemmBlockKernel gemm_block_amx;     // bf16 operands
}  // namespace cpu

}  // namespace switchyard
