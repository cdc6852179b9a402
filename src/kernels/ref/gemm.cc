// The scalar truth of gemm and the grouped products.
#include "kernels/gemm_problem.h"
#include "kernels/ref/elementwise_access.h"

namespace switchyard::ref {

void gemm_block(const GemmProblem& p, const GemmBlock& block) {
  for (std::int64_t i = block.row_begin; i < block.row_end; ++i) {
    for (std::int64_t j = block.column_begin; j < block.column_end; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l) {
        sum += at(p.a, p.dtype, p.transpose_a ? l * p.lda + i : i * p.lda + l) *
               at(p.b, p.dtype, p.transpose_b ? j * p.ldb + l : l * p.ldb + j);
      }
      if (p.bias != nullptr) sum += at(p.bias, p.dtype, j);
      if (p.accumulate) sum += at(p.c, p.c_dtype, i * p.ldc + j);
      put(p.c, p.c_dtype, i * p.ldc + j, sum);
    }
  }
}

}  // namespace switchyard::ref
