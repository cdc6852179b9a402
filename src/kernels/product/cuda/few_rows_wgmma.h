// Products of few rows on tensor cores (few_rows_wgmma.cu): what their choice is made of.
#pragma once

#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {

// In how many parts few_rows_wgmma() makes the depth: 1, 2, 4 or 8, by the sizes of the weights alone, so
// that a row's bits do not depend on the rows beside it.
int few_rows_parts_of(DeviceProducts args);

// The products in so many parts: 1, 2, 4 or 8, of any number of rows. For few_rows_wgmma(), and tests.
void few_rows_wgmma_in(int parts, DeviceProducts args);

}  // namespace switchyard::gpu
