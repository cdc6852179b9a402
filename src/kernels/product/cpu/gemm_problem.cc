#include "kernels/product/cpu/gemm_problem.h"

#include "core/error.h"

namespace switchyard {
namespace {

// A view of two or three dims as addresses.
struct Matrices {
  explicit Matrices(const TensorView& x)
      : dtype(x.dtype()),
        first(x.device_address()),
        rows(x.dim(x.rank() - 2)),
        leading(x.stride(x.rank() - 2)),
        stride(x.rank() == 3 ? x.stride(0) : 0) {}
  // The matrix `i` of them, from a stored row on.
  std::byte* at(std::int64_t i, std::int64_t row = 0) const {
    return first == nullptr
               ? nullptr
               : first + (i * stride + row * leading) * static_cast<std::int64_t>(size_of(dtype));
  }
  DType dtype;
  std::byte* first;
  std::int64_t rows, leading, stride;
};

// One group, or one matrix of a batch.
struct Part {
  std::int64_t index, row, rows;
};

// The sizes of groups that sum to `rows`.
std::vector<std::int64_t> read_sizes(const char* op, const TensorView& group_sizes, std::int64_t rows) {
  const std::int64_t groups = group_sizes.size();
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(groups));
  if (group_sizes.is_abstract()) {
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

std::int64_t rows_of(const Product::Term& term) {
  return term.a_rows.defined() ? term.a_rows.size() : term.a.dim(0);
}

std::vector<Part> parts_of(const Product& p) {
  std::vector<Part> parts;
  if (p.groups == Product::Groups::none) {
    const std::int64_t batch = p.terms[0].b.rank() == 3 ? p.terms[0].b.dim(0) : 1;
    for (std::int64_t i = 0; i < batch; ++i) parts.push_back({i, 0, 0});
    return parts;
  }
  std::int64_t row = 0, group = 0;
  for (const std::int64_t rows : read_sizes(p.op, p.group_sizes, rows_of(p.terms[0]))) {
    if (rows > 0 || p.groups == Product::Groups::depth) parts.push_back({group, row, rows});
    row += rows;
    ++group;
  }
  if (parts.empty() && group > 0) parts.push_back({0, 0, 0});
  return parts;
}

// The term of a part. A group begins at its first stored row of a, or at its first entry of a_rows.
GemmTerm term_of(const Product& p, const Product::Term& term, const Part& part) {
  const bool grouped = p.groups != Product::Groups::none, of_depth = p.groups == Product::Groups::depth;
  const Matrices a(term.a), b(term.b);
  const bool looked_up = term.a_rows.defined();
  const std::int64_t columns = term.a.dim(term.a.rank() - 1);
  return {.k = of_depth        ? part.rows
               : p.transpose_a ? a.rows
                               : columns,
          .a = a.at(grouped ? 0 : part.index, looked_up ? 0 : part.row),
          .a_rows = looked_up ? term.a_rows.kernel_data<std::int32_t>() + part.row : nullptr,
          .b = of_depth ? b.at(0, part.row) : b.at(part.index),
          .b_next = term.b_next.defined() ? Matrices(term.b_next).at(part.index) : nullptr,
          .lda = term.a.stride(term.a.rank() - 2),
          .ldb = term.b.stride(term.b.rank() - 2)};
}

GemmProblem problem_of(const Product& p, const Product::Right& right, const Part& part) {
  const bool of_rows = p.groups == Product::Groups::rows;
  const Product::Term& first = p.terms[0];
  const GemmTerm term = term_of(p, {.a = first.a, .b = right.b, .a_rows = first.a_rows},
                                {part.index / p.parts, part.row, part.rows});
  const TensorView &a = first.a, &b = right.b;
  const std::size_t a_dims = a.rank(), b_dims = b.rank();
  const bool packed = is_packed(b.dtype());
  const std::int64_t inputs = b.dim(b_dims - 2) * (packed ? block_inputs(b.dtype()) : 1),
                     outputs = b.dim(b_dims - 1) * (packed ? kBlockOutputs : 1);
  CHECK(!packed || !p.transpose_a, "[{}] a transposed A with {} weights", p.op, name_of(b.dtype()));
  GemmProblem problem{.m = of_rows         ? part.rows
                           : p.transpose_a ? a.dim(a_dims - 1)
                                           : a.dim(a_dims - 2),
                      .n = p.transpose_b ? inputs : outputs,
                      .k = term.k,
                      .dtype = a.dtype(),
                      .a = term.a,
                      .transpose_a = p.transpose_a,
                      .lda = term.lda,
                      .b = term.b,
                      .transpose_b = p.transpose_b,
                      .ldb = term.ldb,
                      .weight_dtype = b.dtype(),
                      .ldc = p.transpose_b ? inputs : outputs,
                      .accumulate = p.accumulate,
                      .a_rows = term.a_rows,
                      .logits = p.logits};
  if (right.c.defined()) {
    const Matrices c(right.c);
    problem.c = of_rows ? c.at(0, part.row) : c.at(part.index);
    problem.c_dtype = c.dtype;
    problem.ldc = c.leading;
  }
  CHECK(is_float(problem.dtype) && is_float(problem.c_dtype), "[{}] {} into {}", p.op, name_of(problem.dtype),
        name_of(problem.c_dtype));
  if (p.bias.defined()) problem.bias = Matrices(p.bias).at(0, part.index);
  return problem;
}

// Adds what the one further right operand makes of the same rows.
void add_next(const Product& p, const Part& part, GemmProblem& problem) {
  const GemmProblem next = problem_of(p, p.right[0], part);
  problem.b_next = next.b;
  problem.c_next = next.c;
  if (p.gated == nullptr) return;
  problem.c_dtype = p.result().dtype();
  if (p.gated->hidden.defined()) problem.hidden = Matrices(p.gated->hidden).at(0, part.row);
  if (p.gated->row_weights.defined())
    problem.row_weights = p.gated->row_weights.kernel_data<float>() + part.row;
}

}  // namespace

bool takes_gemm_forms(DType dtype) {
  return dtype == DType::bf16 && active_isa() >= Isa::avx512_bf16;
}

ExpandedProduct::ExpandedProduct(const Product& p) {
  const Product::Right first{p.terms[0].b, p.c};
  const bool as_pair =
      p.gated != nullptr ||
      (p.right.size() == 1 && p.groups != Product::Groups::none &&
       ((takes_gemm_forms(p.terms[0].a.dtype()) && !is_packed(first.b.dtype())) || p.terms.size() > 1));
  const std::vector<Part> parts = parts_of(p);
  more.reserve(parts.size());
  problems.reserve(parts.size() * (as_pair ? 1 : 1 + p.right.size()));
  for (const Part& part : parts) {
    GemmProblem& problem = problems.emplace_back(problem_of(p, first, part));
    if (as_pair) add_next(p, part, problem);
    std::vector<GemmTerm>& terms = more.emplace_back();
    for (const Product::Term& term : p.terms.subspan(1)) terms.push_back(term_of(p, term, part));
    problem.more = terms;
  }
  if (as_pair) return;
  CHECK(p.right.empty() || p.terms.size() == 1, "[{}] {} terms of {} right operands", p.op, p.terms.size(),
        p.right.size());
  for (const Product::Right& right : p.right) {
    for (const Part& part : parts) problems.push_back(problem_of(p, right, part));
  }
}

}  // namespace switchyard
