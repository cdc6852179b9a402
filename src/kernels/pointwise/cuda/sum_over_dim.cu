// A thread sums some neighbours of one row of the result.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/kernels.h"

namespace switchyard::gpu {
namespace {

// The dims of the result but for the last, and where its terms are. Strides are elements of x.
struct SummedDims {
  int count = 0;
  std::int64_t sizes[kMostDims] = {}, strides[kMostDims] = {};
  std::int64_t terms = 0, step = 0, width = 0;
};

template <typename T, int width>
GPU_KERNEL sum_terms(const T* x, T* out, std::int64_t rows, SummedDims dims) {
  const std::int64_t pieces = dims.width / width, i = thread_of_grid();
  if (i >= rows * pieces) return;
  const std::int64_t row = i / pieces, column = i % pieces * width;
  std::int64_t at = column, rest = row;
  for (int d = dims.count - 1; d >= 0; rest /= dims.sizes[d], --d)
    at += rest % dims.sizes[d] * dims.strides[d];
  float sum[width];
  for (int k = 0; k < width; ++k) sum[k] = 0;
  for (std::int64_t term = 0; term < dims.terms; ++term) {
    float values[width];
    load_floats<width>(x + at + term * dims.step, values);
    for (int k = 0; k < width; ++k) sum[k] += values[k];
  }
  store_floats<width>(sum, out + row * dims.width + column);
}

}  // namespace

void sum_over_dim(const SumOverDimArgs& args) {
  const TensorView &x = args.x, &out = args.out;
  SummedDims dims;
  bool wide = true;  // all strides are
  const auto is_wide = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(x.dtype())) % 16 == 0;
  };
  for (std::size_t i = 0; i + 1 < x.rank(); ++i) {
    wide = wide && is_wide(x.stride(i));
    if (i == args.dim) continue;
    dims.sizes[dims.count] = x.dim(i);
    dims.strides[dims.count++] = x.stride(i);
  }
  dims.terms = x.dim(args.dim), dims.step = x.stride(args.dim), dims.width = x.dim(x.rank() - 1);
  const std::int64_t rows = dims.width > 0 ? out.size() / dims.width : 0;
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T* const from = x.device_data<T>();
    T* const to = out.device_data<T>();
    with_width<T>(wide && is_wide(dims.width) && are_wide({from, to}), [&](auto width) {
      launch(threads_for(rows * (dims.width / width.value)), sum_terms<T, width.value>, from, to, rows, dims);
    });
  });
}

}  // namespace switchyard::gpu
