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

namespace switchyard {

// rows [R,K], weights [G,K,N], sizes i32 [G] -> [R,N].
Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes);
// The same plus (rows·a)·b, with a [A,K,r], b [A,r,N] and groups of their own, whose sizes i32 [A] are
// `sizes_of_adapters`.
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
// Gradients of the rows, and of the weights, whose ArrayInfo is `weights`.
Tensor gradient_of_rows(Context& context, const Tensor& dy, const Tensor& weights, const Tensor& sizes);
Tensor gradient_of_weights(Context& context, const Tensor& rows, const Tensor& dy, const Tensor& sizes,
                           const ArrayInfo& weights);

// A low-rank part of one or two grouped products of the same rows: (rows·a)·b_i is added to product i.
struct GroupedLowRank {
  Tensor sizes;           // i32 [G]
  Tensor a;               // [G,K,r]
  std::vector<Tensor> b;  // [G,r,N]

  // `index`: row r of the products is row index[r] of `rows`; undefined: row r.
  void add_to(Context& context, const Tensor& rows, const Tensor& index, std::span<const Tensor> y) const;
  // Gradients of a and of each b, for those of the products; none without `rows`. Adds those of the rows to
  // `drows`, where it is defined: a row for each of the products'.
  std::vector<Tensor> backward(Context& context, const Tensor& rows, const Tensor& index,
                               std::span<const Tensor> dy, const Tensor& drows) const;

 private:
  Tensor low_of(Context& context, const Tensor& rows, const Tensor& index) const;
};

}  // namespace switchyard
