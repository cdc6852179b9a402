// The scalar truth of gemm and the grouped products.
#include <algorithm>
#include <vector>

#include "kernels/packed/packed_block.h"
#include "kernels/pointwise/reference/elementwise_access.h"
#include "kernels/product/cpu/gemm_problem.h"

namespace switchyard::ref {
namespace {

// Values of a group of inputs of an output of packed weights [inputs, outputs].
auto packed_group(const GemmProblem& p, std::int64_t input, std::int64_t output) {
  const std::int64_t inputs = block_inputs(p.weight_dtype),
                     block = input / inputs * p.ldb + output / kBlockOutputs;
  const auto* const bytes =
      static_cast<const std::byte*>(p.b) + block * static_cast<std::int64_t>(size_of(p.weight_dtype));
  return values_of(p.weight_dtype,
                   read_group(p.weight_dtype, bytes, output % kBlockOutputs, input % inputs / kGroupInputs));
}

// Column j of op(B).
std::vector<float> column_of(const GemmProblem& p, std::int64_t j) {
  std::vector<float> column(static_cast<std::size_t>(p.k));
  for (std::int64_t l = 0; l < p.k; ++l) {
    float& value = column[static_cast<std::size_t>(l)];
    if (!p.packed()) {
      value = at(p.b, p.dtype, p.transpose_b ? j * p.ldb + l : l * p.ldb + j);
    } else if (p.transpose_b) {
      value = packed_group(p, j, l)[static_cast<std::size_t>(j % kGroupInputs)];
    } else if (l % kGroupInputs == 0) {
      std::ranges::copy(packed_group(p, l, j), column.begin() + l);
    }
  }
  return column;
}

}  // namespace

void gemm_block(const GemmProblem& p, const GemmBlock& block) {
  for (std::int64_t j = block.column_begin; j < block.column_end; ++j) {
    const std::vector<float> column = column_of(p, j);
    for (std::int64_t i = block.row_begin; i < block.row_end; ++i) {
      float sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l)
        sum += at(p.a, p.dtype, p.transpose_a ? l * p.lda + i : i * p.lda + l) *
               column[static_cast<std::size_t>(l)];
      if (p.bias != nullptr) sum += at(p.bias, p.dtype, j);
      if (p.accumulate) sum += at(p.c, p.c_dtype, i * p.ldc + j);
      put(p.c, p.c_dtype, i * p.ldc + j, sum);
    }
  }
}

}  // namespace switchyard::ref
