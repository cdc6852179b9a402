// The matrix products of kernels/product/gemm.h and kernels/product/grouped_matmul.h
// as what product.h computes.
#include "kernels/product/cuda/operands.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/kernels.h"
#include "kernels/packed/packed_weights.h"
#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/cuda/product.h"

namespace switchyard::gpu {

namespace {

// Has the product read weights [k,n], or [batch,k,n], of its type or packed, as its b.
void use_weights(Product& p, const TensorView& weights) {
  p.terms[0].b = weights.device_address();
  p.terms[0].ldb = weights.stride(weights.rank() - 2);
  p.b_stride = weights.rank() == 3 ? weights.stride(0) : 0;
}

ProductArgs with_weights(Product p, const TensorView& weights) {
  use_weights(p, weights);
  return {p, is_packed(weights.dtype()) ? weights : TensorView()};
}

void run_with_weights(const char* op, const Product& p, const TensorView& weights) {
  run_product(op, with_weights(p, weights));
}

ProductArgs product_of(const GemmArgs& args) {
  const auto batch_of = [](const TensorView& x) { return x.rank() == 3 ? x.dim(0) : 1; };
  const auto stride_of = [](const TensorView& x) { return x.rank() == 3 ? x.stride(0) : 0; };
  const auto leading = [](const TensorView& x) { return x.stride(x.rank() - 2); };
  const std::size_t rows = args.c.rank() - 2, a_rows = args.a.rank() - 2;
  const Product product{.dtype = args.a.dtype(),
                        .c_dtype = args.c.dtype(),
                        .m = args.c.dim(rows),
                        .n = args.c.dim(rows + 1),
                        .terms = {{.a = args.a.device_address(),
                                   .k = args.a.dim(args.transpose_a ? a_rows : a_rows + 1),
                                   .lda = leading(args.a)}},
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .ldc = leading(args.c),
                        .c = args.c.device_address(),
                        .accumulate = args.accumulate,
                        .batch = batch_of(args.c),
                        .a_stride = stride_of(args.a),
                        .c_stride = stride_of(args.c)};
  return with_weights(product, args.b);
}

// The products in runs of so many at most.
template <std::size_t most, typename Run>
void in_runs(std::span<const GemmArgs> products, const Run& run) {
  for (std::size_t first = 0; first < products.size(); first += most)
    run(products.subspan(first, std::min(most, products.size() - first)));
}

}  // namespace

void gemm(const GemmArgs& args) {
  run_product("gemm", product_of(args));
}

void gemm_each(std::span<const GemmArgs> products) {
  in_runs<kMostProducts>(products, [](std::span<const GemmArgs> some) {
    std::vector<ProductArgs> list;
    for (const GemmArgs& one : some) list.push_back(product_of(one));
    run_products("gemm", list);
  });
}

void gemm_sum(std::span<const GemmArgs> products) {
  in_runs<kMostTerms>(products, [](std::span<const GemmArgs> some) {
    ProductArgs sum = product_of(some.front());
    Product& p = sum.product;
    for (const GemmArgs& more : some.subspan(1)) p.terms[p.term_count++] = product_of(more).product.terms[0];
    run_product("gemm", sum);
  });
}

Product of_row_groups(const TensorView& a, const TensorView& index, const TensorView& group_sizes,
                      const TensorView& c) {
  const std::int64_t k = a.dim(1), n = c.dim(1);
  return {.dtype = a.dtype(),
          .c_dtype = c.dtype(),
          .m = c.dim(0),
          .n = n,
          .terms = {{.a = a.device_address(), .a_rows = index.device_data<std::int32_t>(), .k = k, .lda = k}},
          .ldc = n,
          .c = c.device_address(),
          .groups = Groups::rows,
          .batch = group_sizes.size(),
          .group_sizes = group_sizes.device_data<std::int32_t>()};
}

Product of_row_groups_back(const TensorView& dy, const TensorView& group_sizes, const TensorView& c) {
  Product p = of_row_groups(dy, {}, group_sizes, c);
  p.transpose_b = true;
  return p;
}

namespace {

// The gradient of weights [G,k,n] from rows of x [*,k] and dy [R,n].
Product of_depth_groups(const TensorView& x, const TensorView& index, const TensorView& dy,
                        const TensorView& group_sizes, const TensorView& c) {
  const std::int64_t k = c.dim(1), n = c.dim(2);
  return {.dtype = x.dtype(),
          .c_dtype = c.dtype(),
          .m = k,
          .n = n,
          .terms = {{.a = x.device_address(),
                     .a_rows = index.device_data<std::int32_t>(),
                     .b = dy.device_address(),
                     .lda = k,
                     .ldb = n}},
          .transpose_a = true,
          .ldc = n,
          .c = c.device_address(),
          .groups = Groups::depth,
          .batch = c.dim(0),
          .c_stride = k * n,
          .group_sizes = group_sizes.device_data<std::int32_t>(),
          .depth_rows = dy.dim(0)};
}

// The rows of a pair of products: looked up once for both where that pays, else by the products.
class Rows {
 public:
  Rows(const TensorView& x, const TensorView& index, const Product& product) : x_(x), index_(index) {
    if (!index.defined() || !pays_to_gather(product)) return;
    const Shape shape{index.dim(0), x.dim(1)};
    gathered_.emplace(x, static_cast<std::size_t>(num_elements(shape)) * size_of(x.dtype()));
    x_ = gathered_->view(x.dtype(), shape);
    index_ = {};
    ragged_gather({.x = x, .index = index, .w = {}, .out = x_});
  }
  const TensorView& x() const { return x_; }
  const TensorView& index() const { return index_; }

 private:
  TensorView x_, index_;
  std::optional<Workspace> gathered_;
};

}  // namespace

void gmm(const GmmArgs& args) {
  Product p = of_row_groups(args.lhs, {}, args.group_sizes, args.out);
  p.bias = args.bias.device_address();
  p.bias_stride = p.n;
  p.accumulate = args.accumulate;
  run_with_weights("gmm", p, args.rhs);
}

void gmm_dlhs(const GmmDlhsArgs& args) {
  run_with_weights("gmm_dlhs", of_row_groups_back(args.dy, args.group_sizes, args.dlhs), args.rhs);
}

void gmm_drhs(const GmmDrhsArgs& args) {
  run_product("gmm_drhs", {of_depth_groups(args.lhs, {}, args.dy, args.group_sizes, args.drhs)});
}

void gmm_pair(const GmmPairArgs& args) {
  run_gated_product(args);
}

void composed_gated_product(const GmmPairArgs& args) {
  const TensorView& any = args.any_out();
  const Rows rows(args.x, args.index, of_row_groups(args.x, args.index, args.group_sizes, any));
  // Gate and up that are not wanted are made all the same, for the activation.
  const std::size_t bytes = args.out_0.defined() ? 0 : any.bytes();
  const Workspace gates(any, bytes), ups(any, bytes);
  const TensorView gate = args.out_0.defined() ? args.out_0 : gates.view(any.dtype(), any.shape()),
                   up = args.out_1.defined() ? args.out_1 : ups.view(any.dtype(), any.shape());
  for (const auto& [rhs, out] : {std::pair(args.rhs_0, gate), std::pair(args.rhs_1, up)})
    run_with_weights("gmm", of_row_groups(rows.x(), rows.index(), args.group_sizes, out), rhs);
  if (args.hidden.defined() && args.hidden.size() > 0) swiglu({gate, up, args.row_weights, args.hidden});
}

void gmm_dlhs_pair(const GmmDlhsPairArgs& args) {
  Product p = of_row_groups_back(args.dy_0, args.group_sizes, args.dlhs);
  if (is_packed(args.rhs_0.dtype())) {
    // Unpacked one after the other; the sum waits in float32.
    const Shape& shape = args.dlhs.shape();
    const Workspace memory(args.dlhs, static_cast<std::size_t>(num_elements(shape)) * sizeof(float));
    const TensorView sums = memory.view(DType::f32, shape);
    p.c = sums.device_address();
    p.c_dtype = DType::f32;
    run_with_weights("gmm_dlhs", p, args.rhs_0);
    p.terms[0].a = args.dy_1.device_address();
    p.accumulate = true;
    run_with_weights("gmm_dlhs", p, args.rhs_1);
    return convert({.a = sums, .out = args.dlhs});
  }
  use_weights(p, args.rhs_0);
  p.terms[1] = p.terms[0];
  p.terms[1].a = args.dy_1.device_address();
  p.terms[1].b = args.rhs_1.device_address();
  p.term_count = 2;
  run_product("gmm_dlhs", {p});
}

void gmm_drhs_pair(const GmmDrhsPairArgs& args) {
  const Rows rows(args.x, args.index,
                  of_depth_groups(args.x, args.index, args.dy_0, args.group_sizes, args.drhs_0));
  run_product("gmm_drhs",
              {of_depth_groups(rows.x(), rows.index(), args.dy_0, args.group_sizes, args.drhs_0)});
  run_product("gmm_drhs",
              {of_depth_groups(rows.x(), rows.index(), args.dy_1, args.group_sizes, args.drhs_1)});
}

void composed_gated_down(const GatedDownBackwardArgs& args) {
  const Workspace memory(args.gate, args.gate.bytes());
  const TensorView dhidden = memory.view(args.gate.dtype(), args.gate.shape());
  gmm_dlhs({args.dy, args.wo, args.group_sizes, dhidden});
  if (args.gate.size() > 0 || args.drow_weights.size() > 0)
    swiglu_backward({args.gate, args.up, args.row_weights, dhidden, args.dgate, args.dup, args.drow_weights});
  if (args.hidden.size() > 0) swiglu({args.gate, args.up, args.row_weights, args.hidden});
}

const char* unpacked_refuses(const ProductArgs& args) {
  return args.packed.defined() ? nullptr : "the weights are not packed";
}

void unpacked_product(const ProductArgs& args) {
  const Shape shape = unpacked_shape(args.packed.dtype(), args.packed.shape());
  const Workspace memory(args.packed,
                         static_cast<std::size_t>(num_elements(shape)) * size_of(args.product.dtype));
  const TensorView dense = memory.view(args.product.dtype, shape);
  unpack_weights({.packed = args.packed, .dense = dense});
  run_with_weights("gemm of unpacked weights", args.product, dense);
}

}  // namespace switchyard::gpu
