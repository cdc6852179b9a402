// The pieces of work behind ragged_rows.h, for the reference implementation and the vector kernels. Positions
// outside [0, rows) are never read.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace switchyard {

struct RaggedRows {
  DType dtype = DType::f32;  // of x and dy, and of gather's output
  const void* x = nullptr;
  std::int64_t m = 0;
  // gather has the source row of each row here; the other ops have
  // the position of each assignment, `per_token` a token.
  std::span<const std::int32_t> index;
  std::int64_t per_token = 1;
  std::int64_t rows = 0;  // of x, or of gather's output
  const float* w = nullptr;
  const void* dy = nullptr;
  void* out = nullptr;
  DType out_dtype = DType::f32;
};

// Computes rows [begin, end) of the result: gather has one for each position, the other two for each token.
using RaggedRowsKernel = void(const RaggedRows& problem, std::int64_t begin, std::int64_t end);

namespace ref {
RaggedRowsKernel ragged_gather, ragged_gather_reduce, ragged_row_dot;
}
namespace cpu {
RaggedRowsKernel ragged_gather_avx2, ragged_gather_reduce_avx2, ragged_row_dot_avx2;
RaggedRowsKernel ragged_gather_avx512, ragged_gather_reduce_avx512, ragged_row_dot_avx512;
}  // namespace cpu

}  // namespace switchyard
