#include "kernels/grouped_matmul.h"

#include <vector>

#include "core/error.h"
#include "kernels/gemm_problem.h"

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

}  // namespace

void gmm(ThreadPool& pool, DType dtype, const void* lhs, const void* rhs, const void* bias,
         std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* out) {
  const auto problems = per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
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
  run_gemms(pool, "gmm", problems);
}

void gmm_dlhs(ThreadPool& pool, DType dtype, const void* dy, const void* rhs,
              std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* dlhs) {
  const auto problems = per_group(group_sizes, [&](std::int64_t g, std::int64_t row, std::int64_t rows) {
    return GemmProblem{.m = rows,
                       .n = k,
                       .k = n,
                       .dtype = dtype,
                       .a = advance(dy, dtype, row * n),
                       .lda = n,
                       .b = advance(rhs, dtype, g * k * n),
                       .transpose_b = true,
                       .ldb = n,
                       .c = advance(dlhs, dtype, row * k),
                       .c_dtype = dtype,
                       .ldc = k};
  });
  run_gemms(pool, "gmm_dlhs", problems);
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

}  // namespace switchyard
