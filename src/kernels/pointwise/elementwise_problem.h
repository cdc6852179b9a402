// The kernels of sums of squares (elementwise.h), of every device.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/cpu/square_sums.h"
#include "kernels/pointwise/elementwise.h"

namespace switchyard {

// Adds the squares of elements [begin, end) of a, one piece, to `squares`.
using SumOfSquaresKernel = void(DType dtype, const void* a, std::int64_t begin, std::int64_t end,
                                SquareSums& squares);

namespace ref {
SumOfSquaresKernel sum_of_squares;
}  // namespace ref
namespace cpu {
SumOfSquaresKernel sum_of_squares_avx2, sum_of_squares_avx512;
}  // namespace cpu
namespace gpu {
void sums_of_squares(const std::span<const SquareSumArgs>& args);
}  // namespace gpu

}  // namespace switchyard
