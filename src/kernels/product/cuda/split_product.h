// Products whose depth the blocks of a cluster share (split_product.cu): what their choice is made of.
#pragma once

#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {

// In how many parts split_product() makes the depth: 1, 2 or 4, by sizes alone.
int depth_parts_of(DeviceProducts args);

// The products in so many parts: 1, 2 or 4. For split_product(), and tests.
void split_product_in(int parts, DeviceProducts args);

}  // namespace switchyard::gpu
