#include "kernels/element/element.h"

#include <algorithm>

namespace switchyard {
namespace {

bool is_shared(const ElementArgs& args, std::size_t operand) {
  return (args.shared >> operand & 1) != 0;
}

std::int64_t columns_of(const ElementArgs& args) {
  for (std::size_t i = 0; i < kMostOperands; ++i) {
    if (is_shared(args, i)) return args.in[i]->size();
  }
  return args.out[0]->shape().back();
}

// Rows without columns have sums, too.
std::int64_t rows_of(const ElementArgs& args) {
  const TensorView& out = *args.out[0];
  const std::int64_t columns = columns_of(args);
  if (columns > 0) return out.size() / columns;
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < out.rank(); ++i) rows *= out.dim(i);
  return rows;
}

void check(const char* op, const ElementArgs& args) {
  const TensorView& first = *args.out[0];
  const std::int64_t size = first.size();
  const auto check_one = [&](const TensorView* other, std::int64_t expected, bool may_be_f32 = false) {
    const bool typed = other->dtype() == first.dtype() || (may_be_f32 && other->dtype() == DType::f32);
    CHECK((typed || args.has_two_dtypes) && is_float(other->dtype()) && other->size() == expected &&
              (other->is_contiguous() || (other == &first && other->rank() == 2 && other->stride(1) == 1)),
          "[{}] {} of {} beside {} of {}", op, to_string(other->shape()), name_of(other->dtype()),
          to_string(first.shape()), name_of(first.dtype()));
  };
  for (std::size_t i = 0; i < kMostOperands; ++i) {
    if (args.in[i] != nullptr) check_one(args.in[i], is_shared(args, i) ? columns_of(args) : size);
  }
  for (const TensorView* other : args.out) {
    if (other != nullptr) check_one(other, size);
  }
  for (const TensorView* other : {args.row_number, args.sum}) {
    if (other != nullptr) check_one(other, rows_of(args), true);
  }
}

// registry::require_one_device() sees views, and ElementArgs points to them.
void require_one_device(const char* op, const ElementArgs& args) {
  const bool on_gpu = args.out[0]->on_gpu();
  int number = 0;
  const auto require = [&](const TensorView* view) {
    ++number;
    if (view != nullptr && view->on_gpu() != on_gpu) registry::refuse_other_device(op, number, *view);
  };
  for (const TensorView* view : args.in) require(view);
  for (const TensorView* view : args.out) require(view);
  require(args.row_number);
  require(args.sum);
}

}  // namespace

Elements elements_of(const ElementArgs& args) {
  const TensorView& out = *args.out[0];
  const auto address = [](const TensorView* view) {
    return view == nullptr ? nullptr : view->device_address();
  };
  const bool apart = !out.is_contiguous();
  Elements elements{.out_dtype = out.dtype(),
                    .by_rows = args.row_number != nullptr || args.sum != nullptr || args.shared != 0 || apart,
                    .rows = out.size(),
                    .row_number = address(args.row_number),
                    .sum = address(args.sum),
                    .number = args.number};
  if (elements.by_rows) elements.rows = rows_of(args), elements.columns = columns_of(args);
  for (std::size_t i = 0; i < kMostOperands; ++i) {
    elements.in[i] = {address(args.in[i]), is_shared(args, i) ? -elements.columns : 0};
    if (args.in[i] != nullptr) elements.dtype = args.in[i]->dtype();
  }
  for (std::size_t i = 0; i < kMostResults; ++i) elements.out[i] = {address(args.out[i])};
  if (apart) elements.out[0].shift = out.stride(0) - elements.columns;
  if (args.row_number != nullptr) elements.row_dtype = args.row_number->dtype();
  if (args.sum != nullptr) elements.sum_dtype = args.sum->dtype();
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
  const auto size = static_cast<double>(args.out[0]->size());
  Work work{.flops = flops * size};
  for (const TensorView* view : args.in) {
    if (view == nullptr) continue;
    work.dtype = view->dtype();
    work.bytes += size * static_cast<double>(size_of(view->dtype()));
  }
  for (const TensorView* view : args.out)
    work.bytes += view == nullptr ? 0 : size * static_cast<double>(size_of(view->dtype()));
  return work;
}

}  // namespace elements_detail

void run_elements(ThreadPool& pool, const Kernel<ElementArgs>& kernel, const ElementArgs& args) {
  require_one_device(kernel.name, args);
  check(kernel.name, args);
  run(pool, kernel, args);
}

}  // namespace switchyard
