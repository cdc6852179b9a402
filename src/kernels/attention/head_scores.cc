#include "kernels/attention/head_scores.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cuda/kernels.h"

namespace switchyard {
namespace {

template <typename T>
void scale_columns_of(ThreadPool& pool, const ScaleColumnsArgs& args) {
  T* const x = args.x.kernel_data<T>();
  const float* const factors = args.factors.kernel_data<float>();
  const std::int64_t columns = args.factors.size();
  pool.for_range(args.x.size(), 16384, [&](std::int64_t begin, std::int64_t end) {
    std::int64_t column = (args.first + begin) % columns;
    for (std::int64_t i = begin; i < end; ++i) {
      x[i] = T(static_cast<float>(x[i]) * factors[column]);
      if (++column == columns) column = 0;
    }
  });
}

}  // namespace

void largest_scores(ThreadPool& pool, const TensorView& top, const TensorView& largest) {
  CHECK(top.rank() == 3 && top.dtype() == DType::f32 && largest.dtype() == DType::f32 &&
            largest.shape() == Shape{top.dim(1)} && top.is_contiguous() && largest.is_contiguous(),
        "[largest_scores] {} of {} into {} of {}", to_string(top.shape()), name_of(top.dtype()),
        to_string(largest.shape()), name_of(largest.dtype()));
  const auto n = static_cast<double>(top.size());
  if (pool.skips({"largest_scores", DType::f32, n, 4 * n})) return;
  if (top.on_gpu()) return gpu::largest_scores(top, largest);
  const std::int64_t batch = top.dim(0), heads = top.dim(1), length = top.dim(2);
  const float* const from = top.kernel_data<float>();
  float* const to = largest.kernel_data<float>();
  pool.for_range(heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      float most = -std::numeric_limits<float>::infinity();
      for (std::int64_t b = 0; b < batch; ++b) {
        const float* const row = from + (b * heads + head) * length;
        for (std::int64_t s = 0; s < length; ++s) most = std::max(most, row[s]);
      }
      to[head] = most;
    }
  });
}

void scale_columns(ThreadPool& pool, const ScaleColumnsArgs& args) {
  CHECK(is_float(args.x.dtype()) && args.factors.dtype() == DType::f32 && args.first >= 0 &&
            (args.factors.size() > 0 || args.x.size() == 0) && args.x.is_contiguous() &&
            args.factors.is_contiguous(),
        "[scale_columns] {} of {} from {} on by {} of {}", to_string(args.x.shape()), name_of(args.x.dtype()),
        args.first, to_string(args.factors.shape()), name_of(args.factors.dtype()));
  const auto n = static_cast<double>(args.x.size());
  if (pool.skips({"scale_columns", args.x.dtype(), n, 2 * static_cast<double>(args.x.bytes())})) return;
  if (args.x.on_gpu()) return gpu::scale_columns(args);
  args.x.dtype() == DType::f32 ? scale_columns_of<float>(pool, args) : scale_columns_of<bfloat16>(pool, args);
}

}  // namespace switchyard
