#include "kernels/element/element.h"

#include <algorithm>

namespace switchyard {
namespace {

// The dims before the last: rows without columns have sums, too.
std::int64_t rows_of(const TensorView& x) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return rows;
}

void check(const char* op, const ElementArgs& args) {
  const TensorView& x = *args.in[0];
  CHECK(is_float(x.dtype()), "[{}] elements of {}", op, name_of(x.dtype()));
  const auto check_one = [&](const TensorView* other, bool of_rows) {
    if (other == nullptr) return;
    CHECK((other->dtype() == x.dtype() || (of_rows && other->dtype() == DType::f32)) &&
              other->size() == (of_rows ? rows_of(x) : x.size()) && other->is_contiguous(),
          "[{}] {} of {} beside {} of {}", op, to_string(other->shape()), name_of(other->dtype()),
          to_string(x.shape()), name_of(x.dtype()));
  };
  for (const TensorView* other : args.in) check_one(other, false);
  for (const TensorView* other : args.out) check_one(other, false);
  check_one(args.row_number, true);
  check_one(args.sum, true);
}

}  // namespace

Elements elements_of(const ElementArgs& args) {
  const TensorView& x = *args.in[0];
  const auto address = [](const TensorView* view) {
    return view == nullptr ? nullptr : view->device_address();
  };
  Elements elements{.dtype = x.dtype(),
                    .rows = x.size(),
                    .row_number = address(args.row_number),
                    .sum = address(args.sum),
                    .number = x.dtype() == DType::f32 ? args.number : float(bfloat16(args.number))};
  for (std::size_t i = 0; i < kMostOperands; ++i) elements.in[i] = address(args.in[i]);
  for (std::size_t i = 0; i < kMostResults; ++i) elements.out[i] = address(args.out[i]);
  if (args.row_number != nullptr) elements.row_dtype = args.row_number->dtype();
  if (args.sum != nullptr) elements.sum_dtype = args.sum->dtype();
  if (args.row_number != nullptr || args.sum != nullptr)
    elements.rows = rows_of(x), elements.columns = x.shape().back();
  return elements;
}

namespace elements_detail {

void on_threads(ThreadPool& pool, const ElementArgs& args, ElementKernel* kernel) {
  constexpr std::int64_t kElementsOfPiece = 16384;
  const Elements elements = elements_of(args);
  pool.for_range(elements.rows,
                 std::max<std::int64_t>(1, kElementsOfPiece / std::max<std::int64_t>(1, elements.columns)),
                 [&](std::int64_t begin, std::int64_t end) { kernel(elements, begin, end); });
}

Work work_of(const ElementArgs& args, double flops) {
  const TensorView& x = *args.in[0];
  Work work{.dtype = x.dtype(), .flops = flops * static_cast<double>(x.size())};
  const auto count = [&](const TensorView* view) {
    if (view != nullptr) work.bytes += static_cast<double>(view->bytes());
  };
  for (const TensorView* view : args.in) count(view);
  for (const TensorView* view : args.out) count(view);
  count(args.row_number), count(args.sum);
  return work;
}

}  // namespace elements_detail

void run_elements(ThreadPool& pool, const Kernel<ElementArgs>& kernel, const ElementArgs& args) {
  check(kernel.name, args);
  run(pool, kernel, args);
}

}  // namespace switchyard
