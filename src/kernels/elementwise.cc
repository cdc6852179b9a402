#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/elementwise_problem.h"
#include "kernels/gpu/kernels.h"
#include "kernels/simd_list.h"

namespace switchyard {
namespace {

using FlatList = Implementation<FlatKernel, FlatProblem>;
constexpr FlatList kAdd[] = {SWITCHYARD_SIMD_LIST(add)};
constexpr FlatList kScale[] = {SWITCHYARD_SIMD_LIST(scale)};
constexpr FlatList kConvert[] = {SWITCHYARD_SIMD_LIST(convert)};
constexpr Implementation<SumOfSquaresKernel, DType> kSumOfSquares[] = {SWITCHYARD_SIMD_LIST(sum_of_squares)};
constexpr Implementation<SwigluKernel, SwigluProblem> kSwiglu[] = {SWITCHYARD_SIMD_LIST(swiglu)};
constexpr Implementation<SwigluKernel, SwigluProblem> kSwigluBackward[] = {
    SWITCHYARD_SIMD_LIST(swiglu_backward)};

constexpr std::int64_t kGrain = 65536;  // elements a piece: long against handing it out

// Where the elements of a view without gaps are; null of an undefined one.
std::byte* contiguous(const TensorView& x) {
  CHECK(x.is_contiguous(), "a view of {} with gaps", to_string(x.shape()));
  return x.device_address();
}

std::int64_t rows_of(const TensorView& x) {
  const std::int64_t columns = x.shape().back();
  if (columns > 0) return x.size() / columns;
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return rows;
}

void run(ThreadPool& pool, const char* op, const auto& list, const FlatProblem& problem, std::int64_t n) {
  CHECK(is_float(problem.dtype) && is_float(problem.out_dtype), "{} of {} into {}", op,
        name_of(problem.dtype), name_of(problem.out_dtype));
  const double operands = (problem.b == nullptr ? 1 : 2) * static_cast<double>(size_of(problem.dtype));
  if (pool.skips({op, problem.dtype, static_cast<double>(n),
                  static_cast<double>(n) * (operands + static_cast<double>(size_of(problem.out_dtype)))}))
    return;
  FlatKernel* const kernel = choose(op, list, problem);
  pool.for_range(n, kGrain, [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

void run(ThreadPool& pool, const char* op, const auto& list, const SwigluProblem& problem,
         std::int64_t rows) {
  CHECK(is_float(problem.dtype), "{} of {}", op, name_of(problem.dtype));
  const double elements = static_cast<double>(rows * problem.cols);
  const int arrays = problem.dh == nullptr ? 3 : 5;
  if (pool.skips(
          {op, problem.dtype, 8 * elements, arrays * elements * static_cast<double>(size_of(problem.dtype))}))
    return;
  SwigluKernel* const kernel = choose(op, list, problem);
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / 4 / std::max<std::int64_t>(1, problem.cols));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

// Rows of x into those of a wider out.
void convert_rows(ThreadPool& pool, const TensorView& x, const TensorView& out) {
  CHECK(is_float(x.dtype()) && is_float(out.dtype()) && out.rank() == 2 && out.stride(1) == 1,
        "[convert] {} into {} {} of rows {} apart", name_of(x.dtype()), name_of(out.dtype()),
        to_string(out.shape()), out.stride(0));
  const double elements = static_cast<double>(x.size());
  if (pool.skips({"convert", x.dtype(), elements,
                  elements * static_cast<double>(size_of(x.dtype()) + size_of(out.dtype()))}))
    return;
  const std::int64_t rows = out.dim(0), n = out.dim(1);
  const std::byte* const from = contiguous(x);
  std::byte* const to = out.kernel_address();
  const auto row_of = [&](std::int64_t row) {
    return FlatProblem{.dtype = x.dtype(),
                       .a = from + static_cast<std::size_t>(row * n) * size_of(x.dtype()),
                       .out = to + static_cast<std::size_t>(row * out.stride(0)) * size_of(out.dtype()),
                       .out_dtype = out.dtype()};
  };
  FlatKernel* const kernel = choose("convert", kConvert, row_of(0));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) kernel(row_of(row), 0, n);
  });
}

}  // namespace

void add(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out) {
  CHECK(a.dtype() == out.dtype() && (b.dtype() == out.dtype() || out.dtype() == DType::f32) &&
            a.size() == out.size() && b.size() == out.size(),
        "[add] {} {} and {} {} into {} {}", a.size(), name_of(a.dtype()), b.size(), name_of(b.dtype()),
        out.size(), name_of(out.dtype()));
  if (out.on_gpu()) return gpu::add(a, b, out);
  run(pool, "add", kAdd,
      {.dtype = b.dtype(),
       .a = contiguous(a),
       .b = contiguous(b),
       .out = contiguous(out),
       .out_dtype = out.dtype()},
      out.size());
}

void add_to_rows(ThreadPool& pool, const TensorView& rows, const TensorView& row, const TensorView& out) {
  const std::int64_t columns = row.size(), count = columns > 0 ? out.size() / columns : 0;
  CHECK(rows.dtype() == out.dtype() && row.dtype() == out.dtype() && rows.size() == out.size() &&
            count * columns == out.size() && is_float(out.dtype()),
        "[add_to_rows] {} {} of {} and {} {} into {} {}", rows.size(), name_of(rows.dtype()), columns,
        row.size(), name_of(row.dtype()), out.size(), name_of(out.dtype()));
  if (pool.skips({"add_to_rows", out.dtype(), static_cast<double>(out.size()),
                  2 * static_cast<double>(out.bytes())}))
    return;
  if (out.on_gpu()) return gpu::add_to_rows(rows, row, out);
  const std::byte *const from = contiguous(rows), *const added = contiguous(row);
  std::byte* const to = contiguous(out);
  const auto row_of = [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i * columns) * size_of(out.dtype());
    return FlatProblem{
        .dtype = row.dtype(), .a = from + at, .b = added, .out = to + at, .out_dtype = out.dtype()};
  };
  FlatKernel* const kernel = choose("add_to_rows", kAdd, row_of(0));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, columns));
  pool.for_range(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) kernel(row_of(i), 0, columns);
  });
}

void scale(ThreadPool& pool, const TensorView& x, float factor, const TensorView& out) {
  CHECK(x.dtype() == out.dtype() && x.size() == out.size(), "[scale] {} {} into {} {}", x.size(),
        name_of(x.dtype()), out.size(), name_of(out.dtype()));
  if (out.on_gpu()) return gpu::scale(x, factor, out);
  run(pool, "scale", kScale,
      {.dtype = x.dtype(),
       .a = contiguous(x),
       .factor = factor,
       .out = contiguous(out),
       .out_dtype = out.dtype()},
      x.size());
}

void convert(ThreadPool& pool, const TensorView& x, const TensorView& out) {
  CHECK(x.size() == out.size(), "[convert] {} elements into {}", x.size(), out.size());
  if (out.on_gpu()) return gpu::convert(x, out);
  if (!out.is_contiguous()) return convert_rows(pool, x, out);
  const std::int64_t n = x.size();
  if (x.dtype() == out.dtype()) {
    if (pool.skips({"copy", x.dtype(), 0, 2 * static_cast<double>(x.bytes())})) return;
    if (n > 0 && contiguous(x) != contiguous(out)) std::memcpy(contiguous(out), contiguous(x), x.bytes());
    return;
  }
  run(pool, "convert", kConvert,
      {.dtype = x.dtype(), .a = contiguous(x), .out = contiguous(out), .out_dtype = out.dtype()}, n);
}

Tensor converted(ThreadPool& pool, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y(x.memory(), dtype, x.shape());
  convert(pool, x.view(), y.view());
  return y;
}

namespace {

bool skips_squares(ThreadPool& pool, const TensorView& x) {
  CHECK(is_float(x.dtype()), "sum_of_squares of {}", name_of(x.dtype()));
  return pool.skips(
      {"sum_of_squares", x.dtype(), 2 * static_cast<double>(x.size()), static_cast<double>(x.bytes())});
}

double square_sum(ThreadPool& pool, const TensorView& x) {
  SumOfSquaresKernel* const kernel = choose("sum_of_squares", kSumOfSquares, x.dtype());
  CHECK(x.is_contiguous(), "a view of {} with gaps", to_string(x.shape()));
  const std::byte* const data = x.kernel_address();
  return sum_pieces(pool, x.size(), [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(x.dtype(), data, begin, end, squares);
  });
}

}  // namespace

double sum_of_squares(ThreadPool& pool, const TensorView& x) {
  return skips_squares(pool, x) ? 0 : square_sum(pool, x);
}

void sums_of_squares(ThreadPool& pool, std::span<const SquareSumArgs> args) {
  bool skips = args.empty();
  for (const SquareSumArgs& a : args) {
    CHECK(a.x.is_contiguous() && a.sum.size() == 1 && a.sum.dtype() == DType::f64,
          "[sum_of_squares] of {} into {} of {}", to_string(a.x.shape()), to_string(a.sum.shape()),
          name_of(a.sum.dtype()));
    skips |= skips_squares(pool, a.x);
  }
  if (skips) return;
  if (args[0].x.on_gpu()) return gpu::sums_of_squares(args);
  for (const SquareSumArgs& a : args) *a.sum.kernel_data<double>() = square_sum(pool, a.x);
}

namespace {

// What both passes have: gate, up and row weights.
SwigluProblem swiglu_problem(const char* op, const TensorView& gate, const TensorView& up,
                             const TensorView& row_weights) {
  const std::int64_t columns = gate.shape().back(), rows = rows_of(gate);
  CHECK(up.dtype() == gate.dtype() && up.size() == gate.size() &&
            (!row_weights.defined() || row_weights.size() == rows),
        "[{}] gate {} of {}, up {} of {}, {} row weights", op, to_string(gate.shape()), name_of(gate.dtype()),
        to_string(up.shape()), name_of(up.dtype()), row_weights.defined() ? row_weights.size() : 0);
  return {.dtype = gate.dtype(),
          .gate = contiguous(gate),
          .up = contiguous(up),
          .w = row_weights.device_data<float>(),
          .cols = columns};
}

}  // namespace

void swiglu(ThreadPool& pool, const SwigluArgs& args) {
  SwigluProblem problem = swiglu_problem("swiglu", args.gate, args.up, args.row_weights);
  CHECK(args.hidden.dtype() == args.gate.dtype() && args.hidden.size() == args.gate.size(),
        "[swiglu] {} of {} into {} of {}", args.gate.size(), name_of(args.gate.dtype()), args.hidden.size(),
        name_of(args.hidden.dtype()));
  problem.h = contiguous(args.hidden);
  if (args.gate.on_gpu()) return gpu::swiglu(args);
  run(pool, "swiglu", kSwiglu, problem, rows_of(args.gate));
}

void swiglu_backward(ThreadPool& pool, const SwigluBackwardArgs& args) {
  SwigluProblem problem = swiglu_problem("swiglu_backward", args.gate, args.up, args.row_weights);
  for (const TensorView* x : {&args.dhidden, &args.dgate, &args.dup})
    CHECK(x->dtype() == args.gate.dtype() && x->size() == args.gate.size(),
          "[swiglu_backward] {} of {} beside {}", x->size(), name_of(x->dtype()), args.gate.size());
  problem.dh = contiguous(args.dhidden);
  problem.dgate = contiguous(args.dgate);
  problem.dup = contiguous(args.dup);
  if (args.row_weights.defined()) problem.dw = args.drow_weights.device_data<float>();
  if (args.gate.on_gpu()) return gpu::swiglu_backward(args);
  run(pool, "swiglu_backward", kSwigluBackward, problem, rows_of(args.gate));
}

}  // namespace switchyard
