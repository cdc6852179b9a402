#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {
namespace {

std::int64_t stride_of(const TensorView& x) {
  return x.rank() == 3 ? x.stride(0) : 0;
}
std::int64_t leading(const TensorView& x) {
  return x.stride(x.rank() - 2);
}

}  // namespace

DeviceProduct lowered_alone(const Product& product, const Product::Right& right) {
  const bool of_rows = product.groups == Groups::rows, of_depth = product.groups == Groups::depth;
  const Product::Term& first = product.terms[0];
  const TensorView &a = first.a, &b = right.b, &c = right.c.defined() ? right.c : product.result();
  const std::int64_t rows = c.dim(c.rank() - 2), columns = c.dim(c.rank() - 1);
  DeviceProduct p{.dtype = a.dtype(),
                  .c_dtype = c.dtype(),
                  .weight_dtype = b.dtype(),
                  .m = rows,
                  .n = columns,
                  .term_count = static_cast<int>(product.terms.size()),
                  .transpose_a = product.transpose_a,
                  .transpose_b = product.transpose_b,
                  .ldc = leading(c),
                  .c = c.device_address(),
                  .bias = product.bias.device_address(),
                  .accumulate = product.accumulate,
                  .groups = product.groups,
                  .batch = product.group_sizes.defined() ? product.group_sizes.size()
                           : c.rank() == 3               ? c.dim(0)
                                                         : 1,
                  .b_stride = stride_of(b),
                  .c_stride = of_rows ? 0 : stride_of(c),
                  .bias_stride = product.bias.defined() ? columns : 0,
                  .group_sizes = product.group_sizes.device_data<std::int32_t>(),
                  .depth_rows = of_depth ? b.dim(0) : 0};
  if (product.groups == Groups::none) p.a_stride = stride_of(a);
  for (int t = 0; t < p.term_count; ++t) {
    const Product::Term& term = product.terms[static_cast<std::size_t>(t)];
    const std::size_t dims = term.a.rank();
    const TensorView& weights = t == 0 ? b : term.b;
    p.terms[t] = {.a = term.a.device_address(),
                  .a_rows = term.a_rows.device_data<std::int32_t>(),
                  .b = weights.device_address(),
                  .k = of_depth ? 0 : term.a.dim(product.transpose_a ? dims - 2 : dims - 1),
                  .lda = leading(term.a),
                  .ldb = leading(weights)};
  }
  return p;
}

std::vector<DeviceProduct> lowered(const Product& product) {
  const bool several = !product.right.empty(), sums = product.terms.size() > 1;
  if (product.gated != nullptr || product.terms.size() > kMostTerms || product.right.size() >= kMostProducts)
    return {};
  if (several && (product.groups != Groups::none || product.c.rank() == 3)) return {};
  if (sums && (several || is_packed(product.terms[0].b.dtype()))) return {};
  if (product.parts > 1) return {};
  for (const Product::Term& term : product.terms)
    if (stride_of(term.b) != stride_of(product.terms[0].b)) return {};
  std::vector<DeviceProduct> all{lowered_alone(product, {product.terms[0].b, product.c})};
  for (const Product::Right& right : product.right) all.push_back(lowered_alone(product, right));
  return all;
}

}  // namespace switchyard::gpu
