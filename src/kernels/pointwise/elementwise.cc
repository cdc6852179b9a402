#include "kernels/pointwise/elementwise.h"

#include <cstring>

#include "core/error.h"
#include "kernels/element/element.h"
#include "kernels/pointwise/elementwise_problem.h"

namespace switchyard {
namespace {

const char* refuse_other_types(const ElementArgs& args) {
  if (args.in[0]->dtype() != args.out[0]->dtype()) return "the elements change their type";
  return args.out[0]->is_contiguous() ? nullptr : "the rows of the result are apart";
}

void copy_bytes(ThreadPool&, const ElementArgs& args) {
  const TensorView &x = *args.in[0], &out = *args.out[0];
  if (x.size() > 0 && x.kernel_address() != out.kernel_address())
    std::memcpy(out.kernel_address(), x.kernel_address(), x.bytes());
}

void convert_on_gpu(const ElementArgs& args) {
  refuse_other_types(args) == nullptr ? copy(*args.in[0], *args.out[0]) : gpu::convert(args);
}

SWITCHYARD_ELEMENT_KERNEL(kAdd, add, 1);
SWITCHYARD_ELEMENT_KERNEL(kScale, scale, 1);
constexpr Implementation<ElementArgs> kConverts[] = {{"cuda", Gpu::any, convert_on_gpu},
                                                     {"memcpy", Isa::ref, copy_bytes, refuse_other_types},
                                                     SWITCHYARD_SIMD_ROWS(elements_detail::on_cpu, convert)};
constexpr Kernel<ElementArgs> kAddToRows = element_kernel<1>("add_to_rows", kAddRows),
                              kConvert = element_kernel<1>("convert", kConverts);

}  // namespace

void add(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out) {
  CHECK(a.dtype() == out.dtype() && (b.dtype() == out.dtype() || out.dtype() == DType::f32),
        "[add] {} and {} into {}", name_of(a.dtype()), name_of(b.dtype()), name_of(out.dtype()));
  run_elements(pool, kAdd, {.in = {&a, &b}, .out = {&out}, .has_two_dtypes = true});
}

void add_to_rows(ThreadPool& pool, const TensorView& rows, const TensorView& row, const TensorView& out) {
  run_elements(pool, kAddToRows, {.in = {&rows, &row}, .out = {&out}, .shared = 0b10});
}

void scale(ThreadPool& pool, const TensorView& x, float factor, const TensorView& out) {
  run_elements(pool, kScale, {.in = {&x}, .out = {&out}, .number = factor});
}

void convert(ThreadPool& pool, const TensorView& x, const TensorView& out) {
  const ElementArgs args{.in = {&x}, .out = {&out}, .has_two_dtypes = true};
  if (refuse_other_types(args) != nullptr) return run_elements(pool, kConvert, args);
  CHECK(x.size() == out.size() && x.is_contiguous(), "[convert] {} into {}", to_string(x.shape()),
        to_string(out.shape()));
  run(pool, kConvert, args);  // of any type
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

SWITCHYARD_ELEMENT_KERNEL(kSwiglu, swiglu, 8);
SWITCHYARD_ELEMENT_KERNEL(kSwigluBackward, swiglu_backward, 8);

const TensorView* given(const TensorView& x) {
  return x.defined() ? &x : nullptr;
}

}  // namespace

void swiglu(ThreadPool& pool, const SwigluArgs& args) {
  const auto& [gate, up, row_weights, hidden] = args;
  run_elements(pool, kSwiglu, {.in = {&gate, &up}, .out = {&hidden}, .row_number = given(row_weights)});
}

void swiglu_backward(ThreadPool& pool, const SwigluBackwardArgs& args) {
  const auto& [gate, up, row_weights, dhidden, dgate, dup, drow_weights] = args;
  const TensorView* const weights = given(row_weights);
  run_elements(pool, kSwigluBackward,
               {.in = {&gate, &up, nullptr, &dhidden},
                .out = {&dgate, &dup},
                .row_number = weights,
                .sum = weights == nullptr ? nullptr : given(drow_weights)});
}

}  // namespace switchyard
