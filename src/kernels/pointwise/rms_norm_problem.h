// What rms_norm's implementations are given (internal to kernels/).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

// What is done with a row: all at once, or the sum that its mean is made of, of this rank's part, and the
// rest when it is the sum of all parts.
enum class RowPass { whole, sum, rest };

// Arguments of rms_norm and rms_norm_backward under their public names.
struct RmsNormProblem {
  DType dtype;
  DType scale_dtype;
  std::int64_t dim;
  float eps;
  const void* x;
  const void* scale;
  float scale_offset = 0;
  void* y;
  float* rstd;  // written by the forward, read by the backward pass
  const void* dy = nullptr;
  void* dx = nullptr;
  RowPass pass = RowPass::whole;
  std::int64_t whole_dim;  // what means are over
  float* sums = nullptr;   // [rows] between `sum` and `rest`; may be rstd in the forward pass
};

// Rows [begin, end).
using RmsNormRows = void(const RmsNormProblem&, std::int64_t begin, std::int64_t end);
// Rows [begin, end); dscale [dim] receives the sum over these rows only (overwritten, but in pass `sum`).
using RmsNormBackwardRows = void(const RmsNormProblem&, std::int64_t begin, std::int64_t end, float* dscale);

namespace ref {
RmsNormRows rms_norm;
RmsNormBackwardRows rms_norm_backward;
}  // namespace ref
namespace cpu {
RmsNormRows rms_norm_avx512;
RmsNormRows rms_norm_avx2;
RmsNormBackwardRows rms_norm_backward_avx512;
RmsNormBackwardRows rms_norm_backward_avx2;
}  // namespace cpu

}  // namespace switchyard
