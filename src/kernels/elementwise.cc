#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/elementwise_problem.h"
#include "kernels/simd_list.h"

namespace switchyard {
namespace {

using FlatList = Implementation<FlatKernel, FlatProblem>;
constexpr FlatList kAdd[] = {SWITCHYARD_SIMD_LIST(add)};
constexpr FlatList kScale[] = {SWITCHYARD_SIMD_LIST(scale)};
constexpr FlatList kMultiply[] = {SWITCHYARD_SIMD_LIST(multiply)};
constexpr FlatList kConvert[] = {SWITCHYARD_SIMD_LIST(convert)};
constexpr Implementation<SumOfSquaresKernel, DType> kSumOfSquares[] = {SWITCHYARD_SIMD_LIST(sum_of_squares)};
constexpr Implementation<SwigluKernel, SwigluProblem> kSwiglu[] = {SWITCHYARD_SIMD_LIST(swiglu)};
constexpr Implementation<SwigluKernel, SwigluProblem> kSwigluBackward[] = {
    SWITCHYARD_SIMD_LIST(swiglu_backward)};

constexpr std::int64_t kGrain = 65536;  // elements a piece: long against handing it out

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

}  // namespace

void add(ThreadPool& pool, DType dtype, const void* a, const void* b, void* out, std::int64_t n) {
  run(pool, "add", kAdd, {.dtype = dtype, .a = a, .b = b, .out = out, .out_dtype = dtype}, n);
}

void add_into_f32(ThreadPool& pool, float* accumulator, DType dtype, const void* x, std::int64_t n) {
  run(pool, "add_into_f32", kAdd,
      {.dtype = dtype, .a = accumulator, .b = x, .out = accumulator, .out_dtype = DType::f32}, n);
}

void scale(ThreadPool& pool, DType dtype, const void* x, float factor, void* out, std::int64_t n) {
  run(pool, "scale", kScale, {.dtype = dtype, .a = x, .factor = factor, .out = out, .out_dtype = dtype}, n);
}

void multiply(ThreadPool& pool, DType dtype, const void* a, const void* b, void* out, std::int64_t n) {
  run(pool, "multiply", kMultiply, {.dtype = dtype, .a = a, .b = b, .out = out, .out_dtype = dtype}, n);
}

void convert(ThreadPool& pool, DType from, const void* x, DType to, void* out, std::int64_t n) {
  if (from == to) {
    if (pool.skips({"copy", from, 0, 2 * static_cast<double>(n) * static_cast<double>(size_of(from))}))
      return;
    if (n > 0 && x != out) std::memcpy(out, x, static_cast<std::size_t>(n) * size_of(from));
    return;
  }
  run(pool, "convert", kConvert, {.dtype = from, .a = x, .out = out, .out_dtype = to}, n);
}

void convert_rows(ThreadPool& pool, DType from, const void* x, DType to, void* out, std::int64_t rows,
                  std::int64_t n, std::int64_t stride) {
  CHECK(is_float(from) && is_float(to), "convert_rows of {} into {}", name_of(from), name_of(to));
  const double elements = static_cast<double>(rows * n);
  if (pool.skips({"convert", from, elements, elements * static_cast<double>(size_of(from) + size_of(to))}))
    return;
  const auto row_of = [&](std::int64_t row) {
    const auto at = [&](const void* data, std::int64_t element, DType dtype) {
      return static_cast<std::byte*>(const_cast<void*>(data)) +
             static_cast<std::size_t>(element) * size_of(dtype);
    };
    return FlatProblem{
        .dtype = from, .a = at(x, row * n, from), .out = at(out, row * stride, to), .out_dtype = to};
  };
  FlatKernel* const kernel = choose("convert", kConvert, row_of(0));
  const std::int64_t grain = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, n));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) kernel(row_of(row), 0, n);
  });
}

Tensor converted(ThreadPool& pool, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y(dtype, x.shape());
  convert(pool, x.dtype(), x.raw(), dtype, y.raw(), x.size());
  return y;
}

double sum_of_squares(ThreadPool& pool, DType dtype, const void* x, std::int64_t n) {
  CHECK(is_float(dtype), "sum_of_squares of {}", name_of(dtype));
  if (pool.skips({"sum_of_squares", dtype, 2 * static_cast<double>(n),
                  static_cast<double>(n) * static_cast<double>(size_of(dtype))}))
    return 0;
  SumOfSquaresKernel* const kernel = choose("sum_of_squares", kSumOfSquares, dtype);
  return sum_pieces(pool, n, [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
    kernel(dtype, x, begin, end, squares);
  });
}

void swiglu(ThreadPool& pool, DType dtype, const void* gate, const void* up, const float* w,
            std::int64_t rows, std::int64_t cols, void* h) {
  run(pool, "swiglu", kSwiglu,
      SwigluProblem{.dtype = dtype, .gate = gate, .up = up, .w = w, .cols = cols, .h = h}, rows);
}

void swiglu_backward(ThreadPool& pool, DType dtype, const void* gate, const void* up, const float* w,
                     const void* dh, std::int64_t rows, std::int64_t cols, void* dgate, void* dup,
                     float* dw) {
  run(pool, "swiglu_backward", kSwigluBackward,
      SwigluProblem{.dtype = dtype,
                    .gate = gate,
                    .up = up,
                    .w = w,
                    .cols = cols,
                    .dh = dh,
                    .dgate = dgate,
                    .dup = dup,
                    .dw = w == nullptr ? nullptr : dw},
      rows);
}

void transpose_blocks(ThreadPool& pool, std::int64_t element_bytes, const void* x, std::int64_t a,
                      std::int64_t b, std::int64_t c, std::int64_t d, void* out) {
  const std::int64_t bytes = d * element_bytes;
  if (a * b * c * bytes == 0 ||
      pool.skips({"transpose_blocks", DType::u8, 0, 2 * static_cast<double>(a * b * c * bytes)}))
    return;
  const auto* from = static_cast<const std::byte*>(x);
  auto* to = static_cast<std::byte*>(out);
  // Walks output rows [a, c], each b blocks.
  const std::int64_t grain = std::max<std::int64_t>(1, 4 * kGrain / (b * bytes));
  pool.for_range(a * c, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t i = row / c, k = row % c;
      for (std::int64_t j = 0; j < b; ++j) {
        std::memcpy(to + (row * b + j) * bytes, from + ((i * b + j) * c + k) * bytes,
                    static_cast<std::size_t>(bytes));
      }
    }
  });
}

}  // namespace switchyard
