// Packed weights where no kernel reads their blocks: their values, for one product and no longer.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// `weights` as they are where they are dense, else the values of their blocks in `dtype`. `dense`: the shape
// of the values. It differs from the blocks' in two dims: the last of the inputs, and the last of all.
//
// Every gradient that passes through packed weights to a product's other operand asks here.
Tensor dense_operand(Context& context, const Tensor& weights, const Shape& dense, DType dtype);

// The same of an array [in, out], with its layout. Packed weights have no gradient.
Array dense_weight(Context& context, const Array& weights, DType dtype);

}  // namespace switchyard
