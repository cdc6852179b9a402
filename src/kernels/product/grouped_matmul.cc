#include "kernels/product/grouped_matmul.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/moe/ragged_rows.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/cuda/operands.h"
#include "kernels/product/product.h"

namespace switchyard {
namespace {

void check_view(std::string_view op, const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.defined() && x.dtype() == dtype && x.shape() == shape && x.is_contiguous(),
        "[{}] {} is {} {}, expected {} {} without gaps", op, name, name_of(x.dtype()), to_string(x.shape()),
        name_of(dtype), to_string(shape));
}

void check_optional_view(std::string_view op, const char* name, const TensorView& x, DType dtype,
                         const Shape& shape) {
  if (x.defined()) check_view(op, name, x, dtype, shape);
}

// Which rows are whose, and the sizes of the products.
struct GroupedProduct {
  DType dtype = DType::f32;  // of the rows
  std::int64_t rows = 0, k = 0, n = 0;
  std::vector<std::int64_t> sizes;        // of the groups
  DType weight_dtype = DType::f32;        // that of the rows, or packed
  std::int64_t block_k = 0, block_n = 0;  // k and n in elements of the weights

  std::int64_t groups() const { return static_cast<std::int64_t>(sizes.size()); }
  Shape weights() const { return {groups(), block_k, block_n}; }
  bool packed() const { return is_packed(weight_dtype); }
};

// The sizes of the groups, which sum to `rows`. Where the host cannot read them, sizes that do: a GPU's
// kernels read them themselves.
std::vector<std::int64_t> read_sizes(std::string_view op, const TensorView& group_sizes, std::int64_t rows) {
  CHECK(group_sizes.rank() == 1, "[{}] group_sizes has {} dims", op, group_sizes.rank());
  check_view(op, "group_sizes", group_sizes, DType::i32, group_sizes.shape());
  const std::int64_t groups = group_sizes.dim(0);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(groups));
  if (group_sizes.is_abstract() || group_sizes.on_gpu()) {
    for (std::int64_t g = 0; g < groups; ++g)
      sizes[static_cast<std::size_t>(g)] = rows / groups + (g < rows % groups ? 1 : 0);
    return sizes;
  }
  const auto* const given = group_sizes.kernel_data<std::int32_t>();
  std::int64_t sum = 0;
  for (std::int64_t g = 0; g < groups; ++g) {
    CHECK(given[g] >= 0, "[{}] group {} has {} rows", op, g, given[g]);
    sum += sizes[static_cast<std::size_t>(g)] = given[g];
  }
  CHECK(sum == rows, "[{}] groups of {} rows in all, expected {}", op, sum, rows);
  return sizes;
}

// Of products whose rows `operand` has, one each, and whose weights (or their gradients) are `weights`.
GroupedProduct product_of(std::string_view op, const TensorView& operand, const TensorView& weights,
                          const TensorView& group_sizes, std::int64_t rows) {
  CHECK(weights.rank() == 3, "[{}] weights have {} dims", op, weights.rank());
  const std::int64_t k = weights.dim(1), n = weights.dim(2);
  const bool packed = is_packed(weights.dtype());
  return {.dtype = operand.dtype(),
          .rows = rows,
          .k = packed ? k * block_inputs(weights.dtype()) : k,
          .n = packed ? n * kBlockOutputs : n,
          .sizes = read_sizes(op, group_sizes, rows),
          .weight_dtype = packed ? weights.dtype() : operand.dtype(),
          .block_k = k,
          .block_n = n};
}

// Where the left operand of a pair of products lies.
struct LookedUpRows {
  const std::byte* x;
  const std::int32_t* index;  // null: rows as they stand in x
};

LookedUpRows looked_up(std::string_view op, const TensorView& x, const TensorView& index,
                       const GroupedProduct& product) {
  CHECK(x.rank() == 2, "[{}] x has {} dims", op, x.rank());
  check_view(op, "x", x, product.dtype, {index.defined() ? x.dim(0) : product.rows, product.k});
  check_optional_view(op, "index", index, DType::i32, {product.rows});
  return {x.device_address(), index.device_data<std::int32_t>()};
}

const std::byte* advance(const std::byte* x, DType dtype, std::int64_t elements) {
  return x == nullptr ? nullptr : x + elements * static_cast<std::int64_t>(size_of(dtype));
}

std::byte* advance(std::byte* x, DType dtype, std::int64_t elements) {
  return const_cast<std::byte*>(advance(static_cast<const std::byte*>(x), dtype, elements));
}

enum class Groups : std::uint8_t { all, with_rows };

// One problem per group from make(group, first row, rows).
template <Groups groups = Groups::all, typename Make>
std::vector<GemmProblem> per_group(const GroupedProduct& product, const Make& make) {
  std::vector<GemmProblem> problems;
  constexpr bool kAll = groups == Groups::all;
  problems.reserve(
      static_cast<std::size_t>(kAll ? product.groups() : std::min(product.groups(), product.rows)));
  std::int64_t row = 0, group = -1;
  for (const std::int64_t size : product.sizes) {
    ++group;
    if (kAll || size > 0) problems.push_back(make(group, row, size));
    row += size;
  }
  // A call without rows chooses its kernel all the same, and tells selftest which.
  if (problems.empty() && group >= 0) problems.push_back(make(0, 0, 0));
  return problems;
}

// out[r,:] (+)= lhs[r,:] · rhs[g(r)] + bias[g(r)]
std::vector<GemmProblem> gmm_problems(const GroupedProduct& p, const GmmArgs& args) {
  const DType dtype = p.dtype, out_dtype = args.out.dtype();
  const std::byte *const lhs = args.lhs.kernel_address(), *const rhs = args.rhs.kernel_address(),
                         *const bias = args.bias.kernel_address();
  std::byte* const out = args.out.kernel_address();
  return per_group<Groups::with_rows>(p, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = rows,
                       .n = p.n,
                       .k = p.k,
                       .dtype = dtype,
                       .a = advance(lhs, dtype, row * p.k),
                       .lda = p.k,
                       .b = advance(rhs, p.weight_dtype, g * p.block_k * p.block_n),
                       .ldb = p.block_n,
                       .weight_dtype = p.weight_dtype,
                       .c = advance(out, out_dtype, row * p.n),
                       .c_dtype = out_dtype,
                       .ldc = p.n,
                       .accumulate = args.accumulate,
                       .bias = advance(bias, dtype, g * p.n)};
  });
}

}  // namespace

void gmm(ThreadPool& pool, const GmmArgs& args) {
  CHECK(args.lhs.rank() == 2, "[gmm] lhs has {} dims", args.lhs.rank());
  const GroupedProduct p = product_of("gmm", args.lhs, args.rhs, args.group_sizes, args.lhs.dim(0));
  const DType dtype = p.dtype;
  check_view("gmm", "lhs", args.lhs, dtype, {p.rows, p.k});
  check_view("gmm", "rhs", args.rhs, p.weight_dtype, p.weights());
  check_optional_view("gmm", "bias", args.bias, dtype, {p.groups(), p.n});
  check_view("gmm", "out", args.out, args.out.dtype(), {p.rows, p.n});
  if (args.out.on_gpu()) return gpu::gmm(args);
  run_products(pool, "gmm", gmm_problems(p, args));
}

namespace {

// out[r,:] (+)= dy[r,:] · rhs[g(r)]ᵀ
std::vector<GemmProblem> dlhs_problems(const GroupedProduct& p, const TensorView& dy, const TensorView& rhs,
                                       const TensorView& out, bool accumulate = false) {
  const DType dtype = p.dtype;
  return per_group<Groups::with_rows>(p, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = rows,
                       .n = p.k,
                       .k = p.n,
                       .dtype = dtype,
                       .a = advance(dy.kernel_address(), dtype, row * p.n),
                       .lda = p.n,
                       .b = advance(rhs.kernel_address(), p.weight_dtype, g * p.block_k * p.block_n),
                       .transpose_b = true,
                       .ldb = p.block_n,
                       .weight_dtype = p.weight_dtype,
                       .c = advance(out.kernel_address(), out.dtype(), row * p.k),
                       .c_dtype = out.dtype(),
                       .ldc = p.k,
                       .accumulate = accumulate};
  });
}

}  // namespace

void gmm_dlhs(ThreadPool& pool, const GmmDlhsArgs& args) {
  CHECK(args.dy.rank() == 2, "[gmm_dlhs] dy has {} dims", args.dy.rank());
  const GroupedProduct p = product_of("gmm_dlhs", args.dy, args.rhs, args.group_sizes, args.dy.dim(0));
  check_view("gmm_dlhs", "dy", args.dy, p.dtype, {p.rows, p.n});
  check_view("gmm_dlhs", "rhs", args.rhs, p.weight_dtype, p.weights());
  check_view("gmm_dlhs", "dlhs", args.dlhs, p.dtype, {p.rows, p.k});
  if (args.dlhs.on_gpu()) return gpu::gmm_dlhs(args);
  run_products(pool, "gmm_dlhs", dlhs_problems(p, args.dy, args.rhs, args.dlhs));
}

void gmm_drhs(ThreadPool& pool, const GmmDrhsArgs& args) {
  CHECK(args.lhs.rank() == 2, "[gmm_drhs] lhs has {} dims", args.lhs.rank());
  const GroupedProduct p = product_of("gmm_drhs", args.lhs, args.drhs, args.group_sizes, args.lhs.dim(0));
  const DType dtype = p.dtype, drhs_dtype = args.drhs.dtype();
  check_view("gmm_drhs", "lhs", args.lhs, dtype, {p.rows, p.k});
  check_view("gmm_drhs", "dy", args.dy, dtype, {p.rows, p.n});
  check_view("gmm_drhs", "drhs", args.drhs, drhs_dtype, p.weights());
  if (args.drhs.on_gpu()) return gpu::gmm_drhs(args);
  const auto problems = per_group(p, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = p.k,
                       .n = p.n,
                       .k = rows,
                       .dtype = dtype,
                       .a = advance(args.lhs.kernel_address(), dtype, row * p.k),
                       .transpose_a = true,
                       .lda = p.k,
                       .b = advance(args.dy.kernel_address(), dtype, row * p.n),
                       .ldb = p.n,
                       .c = advance(args.drhs.kernel_address(), drhs_dtype, g * p.k * p.n),
                       .c_dtype = drhs_dtype,
                       .ldc = p.n};
  });
  run_products(pool, "gmm_drhs", problems);
}

namespace {

// The rows themselves, for kernels that do not look them up.
class GatheredRows {
 public:
  GatheredRows(ThreadPool& pool, const TensorView& x, const TensorView& index) : rows_(x) {
    if (!index.defined()) return;
    const Shape shape{index.dim(0), x.dim(1)};
    buffer_.emplace(static_cast<std::size_t>(num_elements(shape)) * size_of(x.dtype()));
    rows_ = TensorView(x.dtype(), shape, buffer_->data(), buffer_->device());
    ragged_gather(pool, {.x = x, .index = index, .w = {}, .out = rows_});
  }
  const TensorView& view() const { return rows_; }

 private:
  TensorView rows_;
  std::optional<Buffer> buffer_;
};

// The first group's rows begin at `row`: their place in x, or in the index.
void set_rows(GemmProblem& p, const LookedUpRows& from, std::int64_t row) {
  p.a = from.index == nullptr ? advance(from.x, p.dtype, row * p.lda) : from.x;
  p.a_rows = from.index == nullptr ? nullptr : from.index + row;
}

}  // namespace

void gmm_pair(ThreadPool& pool, const GmmPairArgs& args) {
  const TensorView& any = args.any_out();
  CHECK(any.rank() == 2 && args.out_0.defined() == args.out_1.defined(), "[gmm_pair] an output has {} dims",
        any.rank());
  const GroupedProduct p = product_of("gmm_pair", args.x, args.rhs_0, args.group_sizes, any.dim(0));
  const DType dtype = p.dtype;
  const LookedUpRows from = looked_up("gmm_pair", args.x, args.index, p);
  check_view("gmm_pair", "rhs_0", args.rhs_0, p.weight_dtype, p.weights());
  check_view("gmm_pair", "rhs_1", args.rhs_1, p.weight_dtype, p.weights());
  check_optional_view("gmm_pair", "out_0", args.out_0, dtype, {p.rows, p.n});
  check_optional_view("gmm_pair", "out_1", args.out_1, dtype, {p.rows, p.n});
  check_optional_view("gmm_pair", "row_weights", args.row_weights, DType::f32, {p.rows});
  check_optional_view("gmm_pair", "hidden", args.hidden, dtype, {p.rows, p.n});
  if (any.on_gpu()) return gpu::gmm_pair(args);
  if (!args.out_0.defined()) {
    // Made all the same, for the activation.
    Buffer gate(any.bytes()), up(any.bytes());
    GmmPairArgs all = args;
    all.out_0 = TensorView(dtype, any.shape(), gate.data(), gate.device());
    all.out_1 = TensorView(dtype, any.shape(), up.data(), up.device());
    return gmm_pair(pool, all);
  }
  if (!takes_gemm_forms(dtype) || p.packed()) {
    const GatheredRows lhs(pool, args.x, args.index);
    // All at once: threads wait for each other once.
    const auto product = [&](const TensorView& rhs, const TensorView& out) {
      return gmm_problems(
          p, {.lhs = lhs.view(), .rhs = rhs, .bias = {}, .group_sizes = args.group_sizes, .out = out});
    };
    auto problems = product(args.rhs_0, args.out_0);
    const auto others = product(args.rhs_1, args.out_1);
    problems.insert(problems.end(), others.begin(), others.end());
    run_products(pool, "gmm", problems);
    if (args.hidden.defined()) swiglu(pool, {args.out_0, args.out_1, args.row_weights, args.hidden});
    return;
  }
  const float* const row_weights = args.row_weights.kernel_data<float>();
  const auto problems =
      per_group<Groups::with_rows>(p, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
        GemmProblem problem{.m = rows, .n = p.n, .k = p.k, .dtype = dtype, .lda = p.k};
        set_rows(problem, from, row);
        problem.b = advance(args.rhs_0.kernel_address(), dtype, g * p.k * p.n);
        problem.b_next = advance(args.rhs_1.kernel_address(), dtype, g * p.k * p.n);
        problem.ldb = p.n;
        problem.c = advance(args.out_0.kernel_address(), dtype, row * p.n);
        problem.c_next = advance(args.out_1.kernel_address(), dtype, row * p.n);
        problem.c_dtype = dtype;
        problem.ldc = p.n;
        problem.hidden = advance(args.hidden.kernel_address(), dtype, row * p.n);
        problem.row_weights = row_weights == nullptr ? nullptr : row_weights + row;
        return problem;
      });
  run_products(pool, "gmm", problems);
}

void gmm_dlhs_pair(ThreadPool& pool, const GmmDlhsPairArgs& args) {
  CHECK(args.dy_0.rank() == 2, "[gmm_dlhs_pair] dy_0 has {} dims", args.dy_0.rank());
  const GroupedProduct p =
      product_of("gmm_dlhs_pair", args.dy_0, args.rhs_0, args.group_sizes, args.dy_0.dim(0));
  const DType dtype = p.dtype;
  check_view("gmm_dlhs_pair", "dy_0", args.dy_0, dtype, {p.rows, p.n});
  check_view("gmm_dlhs_pair", "dy_1", args.dy_1, dtype, {p.rows, p.n});
  check_view("gmm_dlhs_pair", "rhs_0", args.rhs_0, p.weight_dtype, p.weights());
  check_view("gmm_dlhs_pair", "rhs_1", args.rhs_1, p.weight_dtype, p.weights());
  check_view("gmm_dlhs_pair", "dlhs", args.dlhs, dtype, {p.rows, p.k});
  if (args.dlhs.on_gpu()) return gpu::gmm_dlhs_pair(args);
  if (takes_gemm_forms(dtype) && !p.packed()) {
    auto problems = dlhs_problems(p, args.dy_0, args.rhs_0, args.dlhs);
    std::vector<GemmTerm> terms;
    for (const GemmProblem& problem : dlhs_problems(p, args.dy_1, args.rhs_1, args.dlhs))
      terms.push_back(problem.term(0));
    for (std::size_t i = 0; i < terms.size(); ++i) problems[i].more = std::span(terms).subspan(i, 1);
    return run_products(pool, "gmm_dlhs", problems);
  }
  std::optional<Buffer> buffer;  // fp32 between the two products
  TensorView sums = args.dlhs;
  if (dtype != DType::f32) {
    buffer.emplace(static_cast<std::size_t>(p.rows * p.k) * sizeof(float));
    sums = TensorView(DType::f32, {p.rows, p.k}, buffer->data(), buffer->device());
  }
  run_products(pool, "gmm_dlhs", dlhs_problems(p, args.dy_0, args.rhs_0, sums));
  run_products(pool, "gmm_dlhs", dlhs_problems(p, args.dy_1, args.rhs_1, sums, true));
  if (buffer) convert(pool, sums, args.dlhs);
}

void gmm_drhs_pair(ThreadPool& pool, const GmmDrhsPairArgs& args) {
  CHECK(args.dy_0.rank() == 2, "[gmm_drhs_pair] dy_0 has {} dims", args.dy_0.rank());
  const GroupedProduct p =
      product_of("gmm_drhs_pair", args.x, args.drhs_0, args.group_sizes, args.dy_0.dim(0));
  const DType dtype = p.dtype, drhs_dtype = args.drhs_0.dtype();
  const LookedUpRows from = looked_up("gmm_drhs_pair", args.x, args.index, p);
  check_view("gmm_drhs_pair", "dy_0", args.dy_0, dtype, {p.rows, p.n});
  check_view("gmm_drhs_pair", "dy_1", args.dy_1, dtype, {p.rows, p.n});
  check_view("gmm_drhs_pair", "drhs_0", args.drhs_0, drhs_dtype, p.weights());
  check_view("gmm_drhs_pair", "drhs_1", args.drhs_1, drhs_dtype, p.weights());
  if (args.drhs_0.on_gpu()) return gpu::gmm_drhs_pair(args);
  if (!takes_gemm_forms(dtype)) {
    const GatheredRows lhs(pool, args.x, args.index);
    gmm_drhs(pool, {lhs.view(), args.dy_0, args.group_sizes, args.drhs_0});
    gmm_drhs(pool, {lhs.view(), args.dy_1, args.group_sizes, args.drhs_1});
    return;
  }
  const auto problems = per_group(p, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    GemmProblem problem{.m = p.k, .n = p.n, .k = rows, .dtype = dtype, .transpose_a = true, .lda = p.k};
    set_rows(problem, from, row);
    problem.b = advance(args.dy_0.kernel_address(), dtype, row * p.n);
    problem.b_next = advance(args.dy_1.kernel_address(), dtype, row * p.n);
    problem.ldb = p.n;
    problem.c = advance(args.drhs_0.kernel_address(), drhs_dtype, g * p.k * p.n);
    problem.c_next = advance(args.drhs_1.kernel_address(), drhs_dtype, g * p.k * p.n);
    problem.c_dtype = drhs_dtype;
    problem.ldc = p.n;
    return problem;
  });
  run_products(pool, "gmm_drhs", problems);
}

}  // namespace switchyard
