// Grouped products: rows sorted by group, each times its group's own matrix
// (kernels/product/grouped_matmul.h).
//
// R rows in G groups, K inputs, N outputs. Rows have float32 or bfloat16, which the result has; weights
// [G,K,N] have the same type, or are packed. Sums are float32. An operand that requires no gradient costs no
// product for one.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// rows [R,K], weights [G,K,N], sizes i32 [G] -> [R,N].
Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes);

// `sum` and one more grouped product: one of those that a product with a long K is cut into. `sum` [R,N] is
// float32, and undefined for the first; the last gives the rows' type.
Array add_grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                          const Array& sum, bool last);

// ---- The same of tensors, for ops that do more than the product

std::int64_t inputs_of(const Tensor& weights);   // K
std::int64_t outputs_of(const Tensor& weights);  // N
Tensor grouped_product(Context& context, const Tensor& rows, const Tensor& weights, const Tensor& sizes);
// Gradients of the rows, and of the weights, whose info is `weights`.
Tensor gradient_of_rows(Context& context, const Tensor& dy, const Tensor& weights, const Tensor& sizes);
Tensor gradient_of_weights(Context& context, const Tensor& rows, const Tensor& dy, const Tensor& sizes,
                           const ArrayInfo& weights);

}  // namespace switchyard
