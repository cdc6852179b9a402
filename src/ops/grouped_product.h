// Grouped products: rows sorted by group, each multiplied by the matrix of
// its group (kernels/product/grouped_matmul.h).
//
// R rows in G groups, K inputs, N outputs. Rows are float32 or bfloat16, and so is the result; weights
// [G,K,N] have the same type, or are packed. Sums are float32. No gradient product is computed for an operand
// that requires no gradient.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// rows [R,K], weights [G,K,N], sizes i32 [G] -> [R,N].
Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes);

// Adds one more grouped product to `sum`: used for a product with a long K that is cut into several. `sum`
// [R,N] is float32, and undefined for the first; the last one returns the rows' type.
Array add_grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                          const Array& sum, bool last);

// ---- The same on tensors, for ops that do more than the product

std::int64_t inputs_of(const Tensor& weights);   // K
std::int64_t outputs_of(const Tensor& weights);  // N
Tensor grouped_product(Context& context, const Tensor& rows, const Tensor& weights, const Tensor& sizes);
// Gradients of the rows, and of the weights, whose ArrayInfo is `weights`.
Tensor gradient_of_rows(Context& context, const Tensor& dy, const Tensor& weights, const Tensor& sizes);
Tensor gradient_of_weights(Context& context, const Tensor& rows, const Tensor& dy, const Tensor& sizes,
                           const ArrayInfo& weights);

}  // namespace switchyard
