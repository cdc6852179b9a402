#include "kernels/product/grouped_matmul.h"

#include <string_view>
#include <vector>

#include "core/error.h"
#include "kernels/product/product.h"

namespace switchyard {
namespace {

using Groups = Product::Groups;

void check_view(std::string_view op, const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.defined() && x.dtype() == dtype && x.shape() == shape && x.is_contiguous(),
        "[{}] {} is {} {}, expected {} {} without gaps", op, name, name_of(x.dtype()), to_string(x.shape()),
        name_of(dtype), to_string(shape));
}

void check_optional_view(std::string_view op, const char* name, const TensorView& x, DType dtype,
                         const Shape& shape) {
  if (x.defined()) check_view(op, name, x, dtype, shape);
}

// The sizes of products: a row for each row of `operand`. `weights` are weights, or their gradients.
struct Sizes {
  Sizes(std::string_view called, const TensorView& operand, const TensorView& weights,
        const TensorView& group_sizes, std::int64_t row_count)
      : op(called), dtype(operand.dtype()), weight_dtype(dtype), rows(row_count) {
    CHECK(weights.rank() == 3, "[{}] weights have {} dims", op, weights.rank());
    CHECK(group_sizes.rank() == 1, "[{}] group_sizes has {} dims", op, group_sizes.rank());
    check_view(op, "group_sizes", group_sizes, DType::i32, group_sizes.shape());
    const bool packed = is_packed(weights.dtype());
    if (packed) weight_dtype = weights.dtype();
    groups = group_sizes.size();
    parts = weights.dim(0) > 0 ? groups / weights.dim(0) : 1;
    CHECK(groups == parts * weights.dim(0), "[{}] {} groups of {} weights", op, groups, weights.dim(0));
    of_weights = {weights.dim(0), weights.dim(1), weights.dim(2)};
    k = weights.dim(1) * (packed ? block_inputs(weight_dtype) : 1);
    n = weights.dim(2) * (packed ? kBlockOutputs : 1);
  }
  // Adds a low-rank part's term. Its right operand is [r,width], or [width,r] when transposed.
  void add_low(std::vector<Product::Term>& terms, const GmmLow& part, std::int64_t width,
               bool transposed) const {
    if (!part.low.defined()) return;
    CHECK(part.low.rank() == 2, "[{}] low has {} dims", op, part.low.rank());
    const std::int64_t rank = part.low.dim(1);
    check_view(op, "low", part.low, dtype, {rows, rank});
    check_view(op, "the low-rank part's rhs", part.rhs, dtype,
               transposed ? Shape{groups, width, rank} : Shape{groups, rank, width});
    terms.push_back({part.low, part.rhs});
  }
  // For products whose groups have a matrix each.
  void check_whole() const { CHECK(parts == 1, "[{}] {} groups for a matrix", op, parts); }
  // A left operand whose rows may be looked up.
  void check_looked_up(const TensorView& x, const TensorView& index) const {
    CHECK(x.rank() == 2, "[{}] x has {} dims", op, x.rank());
    check_view(op, "x", x, dtype, {index.defined() ? x.dim(0) : rows, k});
    check_optional_view(op, "index", index, DType::i32, {rows});
  }
  std::string_view op;
  DType dtype, weight_dtype;  // the second may be packed
  std::int64_t rows, groups = 0, parts = 1, k = 0, n = 0;
  Shape of_weights;
};

}  // namespace

void gmm(ThreadPool& pool, const GmmArgs& args) {
  CHECK(args.out.rank() == 2, "[gmm] out has {} dims", args.out.rank());
  const Sizes s("gmm", args.lhs, args.rhs, args.group_sizes, args.out.dim(0));
  s.check_looked_up(args.lhs, args.index);
  check_view("gmm", "rhs", args.rhs, s.weight_dtype, s.of_weights);
  check_optional_view("gmm", "bias", args.bias, s.dtype, {s.groups, s.n});
  check_view("gmm", "out", args.out, args.out.dtype(), {s.rows, s.n});
  std::vector<Product::Term> terms{{args.lhs, args.rhs, args.index}};
  s.add_low(terms, args.low, s.n, false);
  multiply(pool, {.op = "gmm",
                  .terms = terms,
                  .c = args.out,
                  .bias = args.bias,
                  .group_sizes = args.group_sizes,
                  .parts = s.parts,
                  .groups = Groups::rows,
                  .accumulate = args.accumulate});
}

void gmm_dlhs(ThreadPool& pool, const GmmDlhsArgs& args) {
  CHECK(args.dy.rank() == 2, "[gmm_dlhs] dy has {} dims", args.dy.rank());
  const Sizes s("gmm_dlhs", args.dy, args.rhs, args.group_sizes, args.dy.dim(0));
  check_view("gmm_dlhs", "dy", args.dy, s.dtype, {s.rows, s.n});
  check_view("gmm_dlhs", "rhs", args.rhs, s.weight_dtype, s.of_weights);
  check_view("gmm_dlhs", "dlhs", args.dlhs, s.dtype, {s.rows, s.k});
  s.check_whole();
  std::vector<Product::Term> terms{{args.dy, args.rhs}};
  s.add_low(terms, args.low, s.k, true);
  multiply(pool, {.op = "gmm_dlhs",
                  .terms = terms,
                  .c = args.dlhs,
                  .group_sizes = args.group_sizes,
                  .groups = Groups::rows,
                  .transpose_b = true});
}

void gmm_drhs(ThreadPool& pool, const GmmDrhsArgs& args) {
  CHECK(args.dy.rank() == 2, "[gmm_drhs] dy has {} dims", args.dy.rank());
  const Sizes s("gmm_drhs", args.lhs, args.drhs, args.group_sizes, args.dy.dim(0));
  s.check_looked_up(args.lhs, args.index);
  check_view("gmm_drhs", "dy", args.dy, s.dtype, {s.rows, s.n});
  check_view("gmm_drhs", "drhs", args.drhs, args.drhs.dtype(), s.of_weights);
  s.check_whole();
  const Product::Term term{args.lhs, args.dy, args.index};
  multiply(pool, {.op = "gmm_drhs",
                  .terms = {&term, 1},
                  .c = args.drhs,
                  .group_sizes = args.group_sizes,
                  .groups = Groups::depth,
                  .transpose_a = true});
}

void gmm_pair(ThreadPool& pool, const GmmPairArgs& args) {
  const TensorView& any = args.any_out();
  CHECK(any.rank() == 2 && args.out_0.defined() == args.out_1.defined(), "[gmm_pair] an output has {} dims",
        any.rank());
  const Sizes s("gmm_pair", args.x, args.rhs_0, args.group_sizes, any.dim(0));
  s.check_looked_up(args.x, args.index);
  check_view("gmm_pair", "rhs_0", args.rhs_0, s.weight_dtype, s.of_weights);
  check_view("gmm_pair", "rhs_1", args.rhs_1, s.weight_dtype, s.of_weights);
  const Shape of_out{s.rows, s.n};
  check_optional_view("gmm_pair", "out_0", args.out_0, s.dtype, of_out);
  check_optional_view("gmm_pair", "out_1", args.out_1, s.dtype, of_out);
  check_optional_view("gmm_pair", "row_weights", args.row_weights, DType::f32, {s.rows});
  check_optional_view("gmm_pair", "hidden", args.hidden, s.dtype, of_out);
  std::vector<Product::Term> terms{{args.x, args.rhs_0, args.index}};
  s.add_low(terms, {args.low, args.low_rhs_0}, s.n, false);
  if (args.low.defined()) {
    check_view("gmm_pair", "low_rhs_1", args.low_rhs_1, s.dtype, args.low_rhs_0.shape());
    terms.back().b_next = args.low_rhs_1;
  }
  const Product::Right right{args.rhs_1, args.out_1};
  const GatedEpilogue gated{args.row_weights, args.hidden};
  multiply(pool, {.op = "gmm",
                  .terms = terms,
                  .right = {&right, 1},
                  .c = args.out_0,
                  .group_sizes = args.group_sizes,
                  .parts = s.parts,
                  .groups = Groups::rows,
                  .gated = &gated});
}

void gmm_dlhs_pair(ThreadPool& pool, const GmmDlhsPairArgs& args) {
  CHECK(args.dy_0.rank() == 2, "[gmm_dlhs_pair] dy_0 has {} dims", args.dy_0.rank());
  const Sizes s("gmm_dlhs_pair", args.dy_0, args.rhs_0, args.group_sizes, args.dy_0.dim(0));
  check_view("gmm_dlhs_pair", "dy_0", args.dy_0, s.dtype, {s.rows, s.n});
  check_view("gmm_dlhs_pair", "dy_1", args.dy_1, s.dtype, {s.rows, s.n});
  check_view("gmm_dlhs_pair", "rhs_0", args.rhs_0, s.weight_dtype, s.of_weights);
  check_view("gmm_dlhs_pair", "rhs_1", args.rhs_1, s.weight_dtype, s.of_weights);
  check_view("gmm_dlhs_pair", "dlhs", args.dlhs, s.dtype, {s.rows, s.k});
  s.check_whole();
  std::vector<Product::Term> terms{{args.dy_0, args.rhs_0}, {args.dy_1, args.rhs_1}};
  for (const GmmLow& part : args.low) s.add_low(terms, part, s.k, true);
  multiply(pool, {.op = "gmm_dlhs",
                  .terms = terms,
                  .c = args.dlhs,
                  .group_sizes = args.group_sizes,
                  .groups = Groups::rows,
                  .transpose_b = true});
}

void gmm_drhs_pair(ThreadPool& pool, const GmmDrhsPairArgs& args) {
  CHECK(args.dy_0.rank() == 2, "[gmm_drhs_pair] dy_0 has {} dims", args.dy_0.rank());
  const Sizes s("gmm_drhs_pair", args.x, args.drhs_0, args.group_sizes, args.dy_0.dim(0));
  s.check_looked_up(args.x, args.index);
  check_view("gmm_drhs_pair", "dy_0", args.dy_0, s.dtype, {s.rows, s.n});
  check_view("gmm_drhs_pair", "dy_1", args.dy_1, s.dtype, {s.rows, s.n});
  check_view("gmm_drhs_pair", "drhs_0", args.drhs_0, args.drhs_0.dtype(), s.of_weights);
  check_view("gmm_drhs_pair", "drhs_1", args.drhs_1, args.drhs_0.dtype(), s.of_weights);
  s.check_whole();
  const Product::Term term{args.x, args.dy_0, args.index};
  const Product::Right right{args.dy_1, args.drhs_1};
  multiply(pool, {.op = "gmm_drhs",
                  .terms = {&term, 1},
                  .right = {&right, 1},
                  .c = args.drhs_0,
                  .group_sizes = args.group_sizes,
                  .groups = Groups::depth,
                  .transpose_a = true});
}

}  // namespace switchyard
