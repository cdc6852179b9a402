#include "kernels/product/gemm.h"

#include <vector>

#include "core/error.h"
#include "kernels/product/product.h"

namespace switchyard {
namespace {

// The sizes of a view of two or three dims, in elements.
struct Matrices {
  explicit Matrices(const TensorView& x) : dtype(x.dtype()) {
    CHECK(x.rank() == 2 || x.rank() == 3, "a matrix of {} dims", x.rank());
    const std::size_t row = x.rank() - 2;
    const bool packed = is_packed(dtype);
    rows = x.dim(row) * (packed ? block_inputs(dtype) : 1);
    columns = x.dim(row + 1) * (packed ? kBlockOutputs : 1);
    if (x.rank() == 3) batch = x.dim(0);
    CHECK(x.dim(row + 1) <= 1 || x.stride(row + 1) == 1, "elements of a row are {} apart", x.stride(row + 1));
  }
  DType dtype;
  std::int64_t batch = 1, rows, columns;
};

void check(const TensorView& a_view, const TensorView& b_view, const TensorView& c_view, const Product& p) {
  const Matrices a(a_view), b(b_view), c(c_view);
  CHECK((is_packed(b.dtype) || a.dtype == b.dtype) && a.batch == c.batch && b.batch == c.batch,
        "[gemm] {} of {}, {} of {}, into {}", a.batch, name_of(a.dtype), b.batch, name_of(b.dtype), c.batch);
  CHECK((p.transpose_a ? a.columns : a.rows) == c.rows &&
            (p.transpose_b ? b.columns : b.rows) == (p.transpose_a ? a.rows : a.columns) &&
            (p.transpose_b ? b.rows : b.columns) == c.columns,
        "[gemm] {}x{} and {}x{} into {}x{}", a.rows, a.columns, b.rows, b.columns, c.rows, c.columns);
}

}  // namespace

void gemm(ThreadPool& pool, const GemmArgs& args) {
  const Product::Term term{args.a, args.b};
  const Product product{.terms = {&term, 1},
                        .c = args.c,
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .accumulate = args.accumulate};
  check(args.a, args.b, args.c, product);
  multiply(pool, product);
}

void gemm_each(ThreadPool& pool, const GemmEachArgs& args) {
  if (args.right.empty()) return;
  std::vector<Product::Right> right;
  for (const auto& [b, c] : args.right) right.push_back({b, c});
  const Product::Term term{args.a, right[0].b};
  const Product product{.terms = {&term, 1},
                        .right = std::span(right).subspan(1),
                        .c = right[0].c,
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b};
  for (const auto& [b, c] : right) {
    CHECK(c.dtype() == right[0].c.dtype(), "[gemm] results of several types");
    CHECK(c.rank() == 2, "[gemm] a result of {} dims among several", c.rank());
    check(args.a, b, c, product);
  }
  multiply(pool, product);
}

void gemm_sum(ThreadPool& pool, const GemmSumArgs& args) {
  CHECK(!args.terms.empty(), "[gemm] a sum of nothing");
  std::vector<Product::Term> terms;
  for (const auto& [a, b] : args.terms) terms.push_back({a, b});
  const Product product{
      .terms = terms, .c = args.c, .transpose_a = args.transpose_a, .transpose_b = args.transpose_b};
  for (const auto& [a, b] : args.terms) check(a, b, args.c, product);
  multiply(pool, product);
}

}  // namespace switchyard
