// The scalar truth of gemm and the grouped products.
#include "kernels/gemm_problem.h"
#include "kernels/packed_block.h"
#include "kernels/ref/elementwise_access.h"

namespace switchyard::ref {
namespace {

// Row i of A times column j of packed B.
float packed_product(const GemmProblem& p, std::int64_t i, std::int64_t j) {
  float sum = 0;
  for (std::int64_t l = 0; l < p.k; l += kGroupInputs) {
    const std::int64_t inputs = block_inputs(p.weight_dtype), block = l / inputs * p.ldb + j / kBlockOutputs;
    const auto* const bytes =
        static_cast<const std::byte*>(p.b) + block * static_cast<std::int64_t>(size_of(p.weight_dtype));
    const auto values = values_of(
        p.weight_dtype, read_group(p.weight_dtype, bytes, j % kBlockOutputs, l % inputs / kGroupInputs));
    for (std::int64_t n = 0; n < kGroupInputs; ++n)
      sum += at(p.a, p.dtype, i * p.lda + l + n) * values[static_cast<std::size_t>(n)];
  }
  return sum;
}

}  // namespace

void gemm_block(const GemmProblem& p, const GemmBlock& block) {
  for (std::int64_t i = block.row_begin; i < block.row_end; ++i) {
    for (std::int64_t j = block.column_begin; j < block.column_end; ++j) {
      float sum = p.packed() ? packed_product(p, i, j) : 0;
      for (std::int64_t l = 0; l < (p.packed() ? 0 : p.k); ++l) {
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
