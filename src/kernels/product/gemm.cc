#include "kernels/product/gemm.h"

#include <vector>

#include "core/error.h"
#include "kernels/product/cuda/operands.h"
#include "kernels/product/product.h"

namespace switchyard {
namespace {

// A view of two or three dims as [batch, rows, columns].
struct Matrices {
  explicit Matrices(const TensorView& x) : dtype(x.dtype()), first(x.device_address()) {
    CHECK(x.rank() == 2 || x.rank() == 3, "a matrix of {} dims", x.rank());
    const std::size_t row = x.rank() - 2;
    rows = x.dim(row), columns = x.dim(row + 1), leading = x.stride(row);
    if (x.rank() == 3) batch = x.dim(0), stride = x.stride(0);
    CHECK(columns <= 1 || x.stride(row + 1) == 1, "elements of a row are {} apart", x.stride(row + 1));
  }
  std::byte* at(std::int64_t i) const {
    return first + i * stride * static_cast<std::int64_t>(size_of(dtype));
  }
  std::int64_t inputs() const { return is_packed(dtype) ? rows * block_inputs(dtype) : rows; }
  std::int64_t outputs() const { return is_packed(dtype) ? columns * kBlockOutputs : columns; }
  DType dtype;
  std::byte* first;
  std::int64_t batch = 1, rows, columns, leading, stride = 0;
};

// CHECKs the operands of `args`.
struct Operands {
  explicit Operands(const GemmArgs& args)
      : a(args.a), b(args.b), c(args.c), k(args.transpose_a ? a.rows : a.columns) {
    const std::int64_t m = c.rows, n = c.columns;
    CHECK((is_packed(b.dtype) || a.dtype == b.dtype) && a.batch == c.batch && b.batch == c.batch,
          "[gemm] {} of {}, {} of {}, into {}", a.batch, name_of(a.dtype), b.batch, name_of(b.dtype),
          c.batch);
    CHECK((args.transpose_a ? a.columns : a.rows) == m &&
              (args.transpose_b ? b.outputs() : b.inputs()) == k &&
              (args.transpose_b ? b.inputs() : b.outputs()) == n,
          "[gemm] {}x{} and {}x{} into {}x{}", a.rows, a.columns, b.rows, b.columns, m, n);
  }
  Matrices a, b, c;
  std::int64_t k;
};

void add_problems(const GemmArgs& args, std::vector<GemmProblem>& problems) {
  const auto [a, b, c, k] = Operands(args);
  for (std::int64_t i = 0; i < c.batch; ++i) {
    problems.push_back({.m = c.rows,
                        .n = c.columns,
                        .k = k,
                        .dtype = a.dtype,
                        .a = a.at(i),
                        .transpose_a = args.transpose_a,
                        .lda = a.leading,
                        .b = b.at(i),
                        .transpose_b = args.transpose_b,
                        .ldb = b.leading,
                        .weight_dtype = b.dtype,
                        .c = c.at(i),
                        .c_dtype = c.dtype,
                        .ldc = c.leading,
                        .accumulate = args.accumulate});
  }
}

}  // namespace

void gemm(ThreadPool& pool, const GemmArgs& args) {
  if (args.c.on_gpu()) {
    const Operands checked(args);
    return gpu::gemm(args);
  }
  std::vector<GemmProblem> problems;
  add_problems(args, problems);
  run_products(pool, "gemm", problems);
}

void gemm_each(ThreadPool& pool, const GemmEachArgs& args) {
  std::vector<GemmArgs> products;
  for (const auto& [b, c] : args.right) {
    products.push_back(
        {.a = args.a, .b = b, .c = c, .transpose_a = args.transpose_a, .transpose_b = args.transpose_b});
    CHECK(c.dtype() == args.right.front().c.dtype(), "[gemm] results of several types");
    CHECK(c.rank() == 2, "[gemm] a result of {} dims among several", c.rank());
  }
  if (products.empty()) return;
  if (args.a.on_gpu()) {
    for (const GemmArgs& product : products) const Operands checked(product);
    return gpu::gemm_each(products);
  }
  // Products with weights of one type run together.
  while (!products.empty()) {
    std::vector<GemmProblem> problems;
    const DType weights = products.front().b.dtype();
    std::erase_if(products, [&](const GemmArgs& product) {
      if (product.b.dtype() != weights) return false;
      add_problems(product, problems);
      return true;
    });
    run_products(pool, "gemm", problems);
  }
}

void gemm_sum(ThreadPool& pool, const GemmSumArgs& args) {
  std::vector<GemmArgs> products;
  for (const auto& [a, b] : args.terms) {
    products.push_back({.a = a,
                        .b = b,
                        .c = args.c,
                        .transpose_a = args.transpose_a,
                        .transpose_b = args.transpose_b,
                        .accumulate = !products.empty()});
  }
  CHECK(!products.empty(), "[gemm] a sum of nothing");
  if (args.c.on_gpu()) {
    for (const GemmArgs& product : products) const Operands checked(product);
    return gpu::gemm_sum(products);
  }
  for (const GemmArgs& product : products) gemm(pool, product);
}

}  // namespace switchyard
