// The kernels behind elementwise.h, of every device.
// CPU kernels compute a range of elements, or of rows, [begin, end).
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/square_sums.h"

namespace switchyard {

// out = a + b, a · factor, or a in another dtype.
struct FlatArgs {
  TensorView a;
  TensorView b = {};  // undefined: there is one operand
  float factor = 1.0f;
  TensorView out;
};

struct FlatProblem {
  DType dtype = DType::f32;  // of b, where there are two operands; a then has the output's
  const void* a = nullptr;
  const void* b = nullptr;
  float factor = 1.0f;
  void* out = nullptr;
  DType out_dtype = DType::f32;
};
using FlatKernel = void(const FlatProblem& problem, std::int64_t begin, std::int64_t end);

// Adds the squares of elements [begin, end) of a, one piece, to `squares`.
using SumOfSquaresKernel = void(DType dtype, const void* a, std::int64_t begin, std::int64_t end,
                                SquareSums& squares);

struct SwigluProblem {
  DType dtype = DType::f32;
  const void* gate = nullptr;
  const void* up = nullptr;
  const float* w = nullptr;
  std::int64_t cols = 0;
  void* h = nullptr;  // forward
  const void* dh = nullptr;
  void* dgate = nullptr;
  void* dup = nullptr;
  float* dw = nullptr;
};
using SwigluKernel = void(const SwigluProblem& problem, std::int64_t row_begin, std::int64_t row_end);

namespace ref {
FlatKernel add, scale, convert;
SumOfSquaresKernel sum_of_squares;
SwigluKernel swiglu, swiglu_backward;
}  // namespace ref
namespace cpu {
FlatKernel add_avx2, scale_avx2, convert_avx2;
FlatKernel add_avx512, scale_avx512, convert_avx512;
SumOfSquaresKernel sum_of_squares_avx2, sum_of_squares_avx512;
SwigluKernel swiglu_avx2, swiglu_backward_avx2, swiglu_avx512, swiglu_backward_avx512;
}  // namespace cpu
namespace gpu {
void add(const FlatArgs& args);
void add_to_rows(const FlatArgs& args);
void scale(const FlatArgs& args);
void convert(const FlatArgs& args);  // rows of out may be apart
void sums_of_squares(const std::span<const SquareSumArgs>& args);
void swiglu(const SwigluArgs& args);
void swiglu_backward(const SwigluBackwardArgs& args);
}  // namespace gpu

}  // namespace switchyard
