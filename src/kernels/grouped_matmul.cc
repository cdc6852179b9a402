#include "kernels/grouped_matmul.h"

#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/elementwise.h"
#include "kernels/gemm_problem.h"
#include "kernels/ragged_rows.h"

namespace switchyard {
namespace {

const std::byte* advance(const void* x, DType dtype, std::int64_t elements) {
  if (x == nullptr) return nullptr;
  return static_cast<const std::byte*>(x) + elements * static_cast<std::int64_t>(size_of(dtype));
}

std::byte* advance(void* x, DType dtype, std::int64_t elements) {
  return const_cast<std::byte*>(advance(static_cast<const void*>(x), dtype, elements));
}

// One problem per group from make(group, first row, rows).
template <typename Make>
std::vector<GemmProblem> per_group(std::span<const std::int64_t> group_sizes, const Make& make) {
  std::vector<GemmProblem> problems;
  problems.reserve(group_sizes.size());
  std::int64_t row = 0;
  for (std::size_t g = 0; g < group_sizes.size(); ++g) {
    CHECK(group_sizes[g] >= 0, "group {} has {} rows", g, group_sizes[g]);
    problems.push_back(make(static_cast<std::int64_t>(g), row, group_sizes[g]));
    row += group_sizes[g];
  }
  return problems;
}

// out[r,:] = lhs[r,:] · rhs[g(r)] + bias[g(r)]
std::vector<GemmProblem> gmm_problems(DType dtype, const void* lhs, const void* rhs, const void* bias,
                                      std::span<const std::int64_t> group_sizes, std::int64_t k,
                                      std::int64_t n, void* out) {
  return per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = rows,
                       .n = n,
                       .k = k,
                       .dtype = dtype,
                       .a = advance(lhs, dtype, row * k),
                       .lda = k,
                       .b = advance(rhs, dtype, g * k * n),
                       .ldb = n,
                       .c = advance(out, dtype, row * n),
                       .c_dtype = dtype,
                       .ldc = n,
                       .bias = advance(bias, dtype, g * n)};
  });
}

}  // namespace

void gmm(ThreadPool& pool, DType dtype, const void* lhs, const void* rhs, const void* bias,
         std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* out) {
  run_gemms(pool, "gmm", gmm_problems(dtype, lhs, rhs, bias, group_sizes, k, n, out));
}

namespace {

// out[r,:] (+)= dy[r,:] · rhs[g(r)]ᵀ
std::vector<GemmProblem> dlhs_problems(DType dtype, const void* dy, const void* rhs,
                                       std::span<const std::int64_t> group_sizes, std::int64_t k,
                                       std::int64_t n, void* out, DType out_dtype, bool accumulate = false) {
  return per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = rows,
                       .n = k,
                       .k = n,
                       .dtype = dtype,
                       .a = advance(dy, dtype, row * n),
                       .lda = n,
                       .b = advance(rhs, dtype, g * k * n),
                       .transpose_b = true,
                       .ldb = n,
                       .c = advance(out, out_dtype, row * k),
                       .c_dtype = out_dtype,
                       .ldc = k,
                       .accumulate = accumulate};
  });
}

}  // namespace

void gmm_dlhs(ThreadPool& pool, DType dtype, const void* dy, const void* rhs,
              std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* dlhs) {
  run_gemms(pool, "gmm_dlhs", dlhs_problems(dtype, dy, rhs, group_sizes, k, n, dlhs, dtype));
}

void gmm_drhs(ThreadPool& pool, DType dtype, const void* lhs, const void* dy,
              std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* drhs,
              DType drhs_dtype) {
  const auto problems = per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = k,
                       .n = n,
                       .k = rows,
                       .dtype = dtype,
                       .a = advance(lhs, dtype, row * k),
                       .transpose_a = true,
                       .lda = k,
                       .b = advance(dy, dtype, row * n),
                       .ldb = n,
                       .c = advance(drhs, drhs_dtype, g * k * n),
                       .c_dtype = drhs_dtype,
                       .ldc = n};
  });
  run_gemms(pool, "gmm_drhs", problems);
}

namespace {

std::int64_t rows_of(std::span<const std::int64_t> group_sizes) {
  return std::accumulate(group_sizes.begin(), group_sizes.end(), std::int64_t{0});
}

// The rows themselves, for kernels that do not look them up.
class GatheredRows {
 public:
  GatheredRows(ThreadPool& pool, DType dtype, const void* x, std::span<const std::int32_t> index,
               std::int64_t k)
      : x_(x) {
    if (index.empty()) return;
    const auto rows = static_cast<std::int64_t>(index.size());
    gathered_ = Tensor(dtype, {rows, k});
    ragged_gather(pool, dtype, x, k, index, 0, rows, nullptr, gathered_.raw());
    x_ = gathered_.raw();
  }
  const void* data() const { return x_; }

 private:
  const void* x_;
  Tensor gathered_;
};

// The first group's rows begin at `row`: their place in x, or in the index.
void set_rows(GemmProblem& p, const void* x, std::span<const std::int32_t> index, std::int64_t row) {
  p.a = index.empty() ? advance(x, p.dtype, row * p.lda) : x;
  p.a_rows = index.empty() ? nullptr : index.data() + row;
}

}  // namespace

void gmm_pair(ThreadPool& pool, DType dtype, const void* x, std::span<const std::int32_t> index,
              const void* rhs_0, const void* rhs_1, std::span<const std::int64_t> group_sizes, std::int64_t k,
              std::int64_t n, void* out_0, void* out_1, const float* row_weights, void* hidden) {
  if (!takes_gemm_forms(dtype)) {
    const GatheredRows lhs(pool, dtype, x, index, k);
    // All at once: threads wait for each other once.
    auto problems = gmm_problems(dtype, lhs.data(), rhs_0, nullptr, group_sizes, k, n, out_0);
    const auto others = gmm_problems(dtype, lhs.data(), rhs_1, nullptr, group_sizes, k, n, out_1);
    problems.insert(problems.end(), others.begin(), others.end());
    run_gemms(pool, "gmm", problems);
    const Shape shape{rows_of(group_sizes), n};
    const auto matrix = [&](const void* data) { return TensorView::of_host(dtype, data, shape); };
    const TensorView weights =
        row_weights == nullptr ? TensorView() : TensorView::of_host(row_weights, {shape[0]});
    if (hidden != nullptr) swiglu(pool, {matrix(out_0), matrix(out_1), weights, matrix(hidden)});
    return;
  }
  const auto problems = per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    GemmProblem p{.m = rows, .n = n, .k = k, .dtype = dtype, .lda = k};
    set_rows(p, x, index, row);
    p.b = advance(rhs_0, dtype, g * k * n);
    p.b_next = advance(rhs_1, dtype, g * k * n);
    p.ldb = n;
    p.c = advance(out_0, dtype, row * n);
    p.c_next = advance(out_1, dtype, row * n);
    p.c_dtype = dtype;
    p.ldc = n;
    p.hidden = advance(hidden, dtype, row * n);
    p.row_weights = row_weights == nullptr ? nullptr : row_weights + row;
    return p;
  });
  run_gemms(pool, "gmm", problems);
}

void gmm_dlhs_pair(ThreadPool& pool, DType dtype, const void* dy_0, const void* dy_1, const void* rhs_0,
                   const void* rhs_1, std::span<const std::int64_t> group_sizes, std::int64_t k,
                   std::int64_t n, void* dlhs) {
  if (takes_gemm_forms(dtype)) {
    auto problems = dlhs_problems(dtype, dy_0, rhs_0, group_sizes, k, n, dlhs, dtype);
    std::vector<GemmTerm> terms;
    for (const GemmProblem& p : dlhs_problems(dtype, dy_1, rhs_1, group_sizes, k, n, dlhs, dtype))
      terms.push_back(p.term(0));
    for (std::size_t i = 0; i < terms.size(); ++i) problems[i].more = std::span(terms).subspan(i, 1);
    return run_gemms(pool, "gmm_dlhs", problems);
  }
  Tensor sums;  // fp32 between the two products
  if (dtype != DType::f32) sums = Tensor(DType::f32, {rows_of(group_sizes), k});
  void* const out = sums.defined() ? sums.raw() : dlhs;
  run_gemms(pool, "gmm_dlhs", dlhs_problems(dtype, dy_0, rhs_0, group_sizes, k, n, out, DType::f32));
  run_gemms(pool, "gmm_dlhs", dlhs_problems(dtype, dy_1, rhs_1, group_sizes, k, n, out, DType::f32, true));
  if (sums.defined()) convert(pool, sums.view(), TensorView::of_host(dtype, dlhs, sums.shape()));
}

void gmm_drhs_pair(ThreadPool& pool, DType dtype, const void* x, std::span<const std::int32_t> index,
                   const void* dy_0, const void* dy_1, std::span<const std::int64_t> group_sizes,
                   std::int64_t k, std::int64_t n, void* drhs_0, void* drhs_1, DType drhs_dtype) {
  if (!takes_gemm_forms(dtype)) {
    const GatheredRows lhs(pool, dtype, x, index, k);
    gmm_drhs(pool, dtype, lhs.data(), dy_0, group_sizes, k, n, drhs_0, drhs_dtype);
    gmm_drhs(pool, dtype, lhs.data(), dy_1, group_sizes, k, n, drhs_1, drhs_dtype);
    return;
  }
  const auto problems = per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    GemmProblem p{.m = k, .n = n, .k = rows, .dtype = dtype, .transpose_a = true, .lda = k};
    set_rows(p, x, index, row);
    p.b = advance(dy_0, dtype, row * n);
    p.b_next = advance(dy_1, dtype, row * n);
    p.ldb = n;
    p.c = advance(drhs_0, drhs_dtype, g * k * n);
    p.c_next = advance(drhs_1, drhs_dtype, g * k * n);
    p.c_dtype = drhs_dtype;
    p.ldc = n;
    return p;
  });
  run_gemms(pool, "gmm_drhs", problems);
}

}  // namespace switchyard
