// Products of few rows, as decoding makes them: memory bounds them, so weights are read once, as they are
// stored.
#pragma once

#include "kernels/gpu/product.h"

namespace switchyard::gpu {

// The product, whose b is of type `weights`: that of a, or packed; then ldb and b_stride count blocks, k and n
// what they hold. False, with nothing done, where rows are many, an operand is transposed, a second term is
// added, the depth is no multiple of 32 or the depth itself in groups, or rows of a are not aligned to 16
// bytes.
bool run_few_rows_product(const Product& product, DType weights);

}  // namespace switchyard::gpu
