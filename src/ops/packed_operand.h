// Dequantises packed weights for a single product, when no kernel reads their blocks.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// Returns dense `weights` as they are, and packed weights as their values in `dtype`. `dense`: the shape of
// the values, which differs from the blocks' shape in two dims: the last input dim, and the last dim.
//
// The gradient of a product with packed weights, with respect to the other operand, uses this function.
Tensor dense_operand(Context& context, const Tensor& weights, const Shape& dense, DType dtype);

// Dequantises an array [in, out]; the result has its sharding. Packed weights have no gradient.
Array dense_weight(Context& context, const Array& weights, DType dtype);

}  // namespace switchyard
