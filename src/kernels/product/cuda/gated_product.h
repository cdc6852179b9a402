// The products of gated experts with their activation, in one launch: gate and up (Product::gated), and the
// way back through down (kernels/product/gated_down.h).
#pragma once

#include "kernels/product/cuda/product.h"
#include "kernels/product/gated_down.h"

namespace switchyard::gpu {

// Gate and up of 128 columns are one tile of 256; rows are looked up by the product. It has the bits of two
// tma_product and swiglu.
void hopper_gated_product(const Product& product);
const char* hopper_gated_refuses(const Product& product);

// dgate, dup and hidden have the bits of the composition; drow_weights is a sum in another order.
void hopper_gated_down(const GatedDownBackwardArgs& args);
const char* hopper_gated_down_refuses(const GatedDownBackwardArgs& args);

}  // namespace switchyard::gpu
