// Products of few rows with packed weights as they are stored.
#pragma once

#include "kernels/gpu/product.h"

namespace switchyard::gpu {

// The product, whose b is blocks of `packed`: ldb and b_stride count blocks, k and n what they hold. False,
// with nothing done, where unpacking pays (many rows), or rows of a are not aligned to 16 bytes.
bool run_packed_product(const Product& product, DType packed);

}  // namespace switchyard::gpu
