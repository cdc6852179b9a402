// Grouped products: rows sorted by group, each multiplied by the matrix of
// its group (kernels/product/grouped_matmul.h).
//
// R rows in G groups, K inputs, N outputs. Rows are float32 or bfloat16, and so is the result; weights
// [G,K,N] have the same type, or are packed. Sums are float32. No gradient product is computed for an operand
// that requires no gradient.
#pragma once

#include <span>
#include <vector>

#include "autograd/op.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard {

// rows [R,K], weights [G,K,N], sizes i32 [G] -> [R,N].
Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes);
// Adds (rows·a)·b in the same sum: a [A,K,r] and b [A,r,N] have groups of their own, whose sizes are i32 [A].
// A may be a multiple of G: then A / G groups of rows, one behind the other, have one weight.
Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                      const Array& sizes_of_adapters, const Array& a, const Array& b);

// Adds one more grouped product to `sum`: used for a product with a long K that is cut into several. `sum`
// [R,N] is float32, and undefined for the first; the last one returns the rows' type.
Array add_grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                          const Array& sum, bool last);

// ---- The same on tensors, for ops that do more than the product

std::int64_t inputs_of(const Tensor& weights);   // K
std::int64_t outputs_of(const Tensor& weights);  // N
Tensor grouped_product(Context& context, const Tensor& rows, const Tensor& weights, const Tensor& sizes);
// A low-rank part of one or two grouped products of the same rows: (rows·a)·b_i is added to product i. Its
// groups may be parts of the weights': then several of them, one behind the other, are of one weight.
struct GroupedLowRank {
  Tensor sizes;           // i32 [G]
  Tensor a;               // [G,K,r]
  std::vector<Tensor> b;  // [G,r,N]

  // rows·a. `index`: row r of the products is row index[r] of `rows`; undefined: row r.
  Tensor low_of(Context& context, const Tensor& rows, const Tensor& index = {}) const;
  // The gradient of low_of() for those of the products.
  Tensor gradient_of_low(Context& context, std::span<const Tensor> dy) const;
  // Gradients of a and of each b, for those of the products and of low_of().
  std::vector<Tensor> gradients(Context& context, const Tensor& rows, const Tensor& index,
                                std::span<const Tensor> dy, const Tensor& dlow) const;
};

// rows·weights with a low-rank part, in one sum.
Tensor grouped_product(Context& context, const Tensor& rows, const Tensor& weights,
                       const GroupedLowRank& low_rank, const Tensor& index = {});
// Gradients of the rows, with a low-rank part's, and of the weights, whose ArrayInfo is `weights`.
Tensor gradient_of_rows(Context& context, const Tensor& dy, const Tensor& weights, const Tensor& sizes,
                        const GmmLow& low = {});
Tensor gradient_of_weights(Context& context, const Tensor& rows, const Tensor& dy, const Tensor& sizes,
                           const ArrayInfo& weights);

}  // namespace switchyard
