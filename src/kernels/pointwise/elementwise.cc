#include "kernels/pointwise/elementwise.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

constexpr std::int64_t kGrain = 65536;  // elements a piece: long against handing it out

// The address of a view without gaps; null of an undefined one.
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

std::int64_t rows_at_once(std::int64_t columns, std::int64_t elements = kGrain) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, columns));
}

// ---- Flat operations

// Every operand read once, the result written once.
Work flat_work(const FlatArgs& args) {
  const auto n = static_cast<double>(args.out.size());
  const TensorView& narrow = args.b.defined() ? args.b : args.a;
  const double operands = (args.b.defined() ? 2 : 1) * static_cast<double>(size_of(narrow.dtype()));
  return {.dtype = narrow.dtype(),
          .flops = n,
          .bytes = n * (operands + static_cast<double>(size_of(args.out.dtype())))};
}

template <FlatKernel* kernel>
void on_elements(ThreadPool& pool, const FlatArgs& args) {
  const FlatProblem problem{.dtype = (args.b.defined() ? args.b : args.a).dtype(),
                            .a = contiguous(args.a),
                            .b = contiguous(args.b),
                            .factor = args.factor,
                            .out = contiguous(args.out),
                            .out_dtype = args.out.dtype()};
  pool.for_range(args.out.size(), kGrain,
                 [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

// Rows of `columns` elements; those of out may be apart. b is one row, or undefined.
template <FlatKernel* kernel>
void on_rows(ThreadPool& pool, const FlatArgs& args, std::int64_t columns, std::int64_t stride) {
  const std::byte *const a = contiguous(args.a), *const b = contiguous(args.b);
  std::byte* const out = args.out.device_address();
  const std::int64_t rows = columns > 0 ? args.out.size() / columns : 0;
  pool.for_range(rows, rows_at_once(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      kernel({.dtype = args.a.dtype(),
              .a = a + static_cast<std::size_t>(row * columns) * size_of(args.a.dtype()),
              .b = b,
              .out = out + static_cast<std::size_t>(row * stride) * size_of(args.out.dtype()),
              .out_dtype = args.out.dtype()},
             0, columns);
    }
  });
}

template <FlatKernel* kernel>
void add_row(ThreadPool& pool, const FlatArgs& args) {
  on_rows<kernel>(pool, args, args.b.size(), args.b.size());
}

template <FlatKernel* kernel>
void convert_elements(ThreadPool& pool, const FlatArgs& args) {
  if (args.out.is_contiguous()) return on_elements<kernel>(pool, args);
  on_rows<kernel>(pool, args, args.out.dim(1), args.out.stride(0));
}

void copy_bytes(ThreadPool&, const FlatArgs& args) {
  const std::byte* const from = contiguous(args.a);
  std::byte* const to = contiguous(args.out);
  if (args.a.size() > 0 && from != to) std::memcpy(to, from, args.a.bytes());
}

const char* refuse_other_types(const FlatArgs& args) {
  if (args.a.dtype() != args.out.dtype()) return "the elements change their type";
  return args.out.is_contiguous() ? nullptr : "the rows of the result are apart";
}

constexpr Implementation<FlatArgs> kAdds[] = {{"cuda", Gpu::any, gpu::add},
                                              SWITCHYARD_SIMD_ROWS(on_elements, add)};
constexpr Implementation<FlatArgs> kRowAdds[] = {{"cuda", Gpu::any, gpu::add_to_rows},
                                                 SWITCHYARD_SIMD_ROWS(add_row, add)};
constexpr Implementation<FlatArgs> kScales[] = {{"cuda", Gpu::any, gpu::scale},
                                                SWITCHYARD_SIMD_ROWS(on_elements, scale)};
constexpr Implementation<FlatArgs> kConverts[] = {{"cuda", Gpu::any, gpu::convert},
                                                  {"memcpy", Isa::ref, copy_bytes, refuse_other_types},
                                                  SWITCHYARD_SIMD_ROWS(convert_elements, convert)};
constexpr Kernel<FlatArgs> kAdd{"add", flat_work, &FlatArgs::out, kAdds},
    kAddToRows{"add_to_rows", flat_work, &FlatArgs::out, kRowAdds},
    kScale{"scale", flat_work, &FlatArgs::out, kScales},
    kConvert{"convert", flat_work, &FlatArgs::out, kConverts};

}  // namespace

void add(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out) {
  CHECK(is_float(b.dtype()) && is_float(out.dtype()) && a.dtype() == out.dtype() &&
            (b.dtype() == out.dtype() || out.dtype() == DType::f32) && a.size() == out.size() &&
            b.size() == out.size(),
        "[add] {} {} and {} {} into {} {}", a.size(), name_of(a.dtype()), b.size(), name_of(b.dtype()),
        out.size(), name_of(out.dtype()));
  run(pool, kAdd, {.a = a, .b = b, .out = out});
}

void add_to_rows(ThreadPool& pool, const TensorView& rows, const TensorView& row, const TensorView& out) {
  const std::int64_t columns = row.size(), count = columns > 0 ? out.size() / columns : 0;
  CHECK(rows.dtype() == out.dtype() && row.dtype() == out.dtype() && rows.size() == out.size() &&
            count * columns == out.size() && is_float(out.dtype()) && out.is_contiguous(),
        "[add_to_rows] {} {} of {} and {} {} into {} {}", rows.size(), name_of(rows.dtype()), columns,
        row.size(), name_of(row.dtype()), out.size(), name_of(out.dtype()));
  run(pool, kAddToRows, {.a = rows, .b = row, .out = out});
}

void scale(ThreadPool& pool, const TensorView& x, float factor, const TensorView& out) {
  CHECK(x.dtype() == out.dtype() && is_float(x.dtype()) && x.size() == out.size(), "[scale] {} {} into {} {}",
        x.size(), name_of(x.dtype()), out.size(), name_of(out.dtype()));
  run(pool, kScale, {.a = x, .factor = factor, .out = out});
}

void convert(ThreadPool& pool, const TensorView& x, const TensorView& out) {
  const bool copies = x.dtype() == out.dtype() && out.is_contiguous();  // of any type
  CHECK(x.size() == out.size() && (copies || (is_float(x.dtype()) && is_float(out.dtype()))) &&
            (out.is_contiguous() || (out.rank() == 2 && out.stride(1) == 1)),
        "[convert] {} {} into {} {}", to_string(x.shape()), name_of(x.dtype()), to_string(out.shape()),
        name_of(out.dtype()));
  run(pool, kConvert, {.a = x, .out = out});
}

Tensor converted(ThreadPool& pool, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y(x.memory(), dtype, x.shape());
  convert(pool, x.view(), y.view());
  return y;
}

// ---- Sums of squares

namespace {

using SquareSumList = std::span<const SquareSumArgs>;

Work squares_work(const SquareSumList& list) {
  Work work{.dtype = list[0].x.dtype()};
  for (const SquareSumArgs& args : list) {
    work.flops += 2 * static_cast<double>(args.x.size());
    work.bytes += static_cast<double>(args.x.bytes());
  }
  return work;
}

template <SumOfSquaresKernel* kernel>
void on_lists(ThreadPool& pool, const SquareSumList& list) {
  for (const SquareSumArgs& args : list) {
    const std::byte* const data = args.x.kernel_address();
    *args.sum.kernel_data<double>() =
        sum_pieces(pool, args.x.size(), [&](std::int64_t begin, std::int64_t end, SquareSums& squares) {
          kernel(args.x.dtype(), data, begin, end, squares);
        });
  }
}

const TensorView& first_of(const SquareSumList& list) {
  return list[0].x;
}

constexpr Implementation<SquareSumList> kSquareSums[] = {{"cuda", Gpu::any, gpu::sums_of_squares},
                                                         SWITCHYARD_SIMD_ROWS(on_lists, sum_of_squares)};
constexpr Kernel<SquareSumList> kSumOfSquares{"sum_of_squares", squares_work, first_of, kSquareSums};

}  // namespace

void sums_of_squares(ThreadPool& pool, std::span<const SquareSumArgs> list) {
  for (const SquareSumArgs& args : list) {
    CHECK(is_float(args.x.dtype()) && args.x.is_contiguous() && args.sum.size() == 1 &&
              args.sum.dtype() == DType::f64,
          "[sum_of_squares] of {} {} into {} of {}", name_of(args.x.dtype()), to_string(args.x.shape()),
          to_string(args.sum.shape()), name_of(args.sum.dtype()));
  }
  if (!list.empty()) run(pool, kSumOfSquares, list);
}

double sum_of_squares(ThreadPool& pool, const TensorView& x) {
  double sum = 0;
  const SquareSumArgs args{x, TensorView::of_host(&sum, {1})};
  sums_of_squares(pool, {&args, 1});
  return sum;
}

// ---- The gated activation

namespace {

// The operands of both passes: gate, up and row weights.
SwigluProblem swiglu_problem(const TensorView& gate, const TensorView& up, const TensorView& row_weights) {
  return {.dtype = gate.dtype(),
          .gate = contiguous(gate),
          .up = contiguous(up),
          .w = row_weights.device_data<float>(),
          .cols = gate.shape().back()};
}

Work swiglu_work(const TensorView& gate, int arrays) {
  const auto elements = static_cast<double>(gate.size());
  return {.dtype = gate.dtype(),
          .flops = 8 * elements,
          .bytes = arrays * elements * static_cast<double>(size_of(gate.dtype()))};
}

Work forward_work(const SwigluArgs& args) {
  return swiglu_work(args.gate, 3);
}

Work backward_work(const SwigluBackwardArgs& args) {
  return swiglu_work(args.gate, 5);
}

void on_rows_of(ThreadPool& pool, const TensorView& gate, SwigluKernel* kernel,
                const SwigluProblem& problem) {
  pool.for_range(rows_of(gate), rows_at_once(problem.cols, kGrain / 4),
                 [&](std::int64_t begin, std::int64_t end) { kernel(problem, begin, end); });
}

template <SwigluKernel* kernel>
void forward(ThreadPool& pool, const SwigluArgs& args) {
  SwigluProblem problem = swiglu_problem(args.gate, args.up, args.row_weights);
  problem.h = contiguous(args.hidden);
  on_rows_of(pool, args.gate, kernel, problem);
}

template <SwigluKernel* kernel>
void backward(ThreadPool& pool, const SwigluBackwardArgs& args) {
  SwigluProblem problem = swiglu_problem(args.gate, args.up, args.row_weights);
  problem.dh = contiguous(args.dhidden);
  problem.dgate = contiguous(args.dgate);
  problem.dup = contiguous(args.dup);
  if (args.row_weights.defined()) problem.dw = args.drow_weights.device_data<float>();
  on_rows_of(pool, args.gate, kernel, problem);
}

constexpr Implementation<SwigluArgs> kSwigluForwards[] = {{"cuda", Gpu::any, gpu::swiglu},
                                                          SWITCHYARD_SIMD_ROWS(forward, swiglu)};
constexpr Implementation<SwigluBackwardArgs> kSwigluBackwards[] = {
    {"cuda", Gpu::any, gpu::swiglu_backward}, SWITCHYARD_SIMD_ROWS(backward, swiglu_backward)};
constexpr Kernel<SwigluArgs> kSwiglu{"swiglu", forward_work, &SwigluArgs::gate, kSwigluForwards};
constexpr Kernel<SwigluBackwardArgs> kSwigluBackward{"swiglu_backward", backward_work,
                                                     &SwigluBackwardArgs::gate, kSwigluBackwards};

void check_swiglu(const char* op, const TensorView& gate, const TensorView& row_weights,
                  std::initializer_list<const TensorView*> others) {
  CHECK(is_float(gate.dtype()) && (!row_weights.defined() || row_weights.size() == rows_of(gate)),
        "[{}] gate {} of {}, {} row weights", op, to_string(gate.shape()), name_of(gate.dtype()),
        row_weights.defined() ? row_weights.size() : 0);
  for (const TensorView* x : others)
    CHECK(x->dtype() == gate.dtype() && x->size() == gate.size(), "[{}] {} of {} beside {} of {}", op,
          x->size(), name_of(x->dtype()), gate.size(), name_of(gate.dtype()));
}

}  // namespace

void swiglu(ThreadPool& pool, const SwigluArgs& args) {
  check_swiglu("swiglu", args.gate, args.row_weights, {&args.up, &args.hidden});
  run(pool, kSwiglu, args);
}

void swiglu_backward(ThreadPool& pool, const SwigluBackwardArgs& args) {
  check_swiglu("swiglu_backward", args.gate, args.row_weights,
               {&args.up, &args.dhidden, &args.dgate, &args.dup});
  run(pool, kSwigluBackward, args);
}

}  // namespace switchyard
