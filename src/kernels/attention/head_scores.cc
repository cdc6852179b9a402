#include "kernels/attention/head_scores.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/kernels.h"
#include "kernels/registry/kernel.h"

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

void columns_of_elements(ThreadPool& pool, const ScaleColumnsArgs& args) {
  args.x.dtype() == DType::f32 ? scale_columns_of<float>(pool, args) : scale_columns_of<bfloat16>(pool, args);
}

void scores_of_heads(ThreadPool& pool, const LargestScoresArgs& args) {
  const std::int64_t batch = args.top.dim(0), heads = args.top.dim(1), length = args.top.dim(2);
  const float* const from = args.top.kernel_data<float>();
  float* const to = args.largest.kernel_data<float>();
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

Work scores_work(const LargestScoresArgs& args) {
  const auto n = static_cast<double>(args.top.size());
  return {.flops = n, .bytes = 4 * n};
}

Work columns_work(const ScaleColumnsArgs& args) {
  return {.dtype = args.x.dtype(),
          .flops = static_cast<double>(args.x.size()),
          .bytes = 2 * static_cast<double>(args.x.bytes())};
}

constexpr Implementation<LargestScoresArgs> kScores[] = {{"cuda", Gpu::any, gpu::largest_scores},
                                                         {"portable", Isa::ref, scores_of_heads}};
constexpr Implementation<ScaleColumnsArgs> kColumns[] = {{"cuda", Gpu::any, gpu::scale_columns},
                                                         {"portable", Isa::ref, columns_of_elements}};
constexpr Kernel<LargestScoresArgs> kLargestScores{"largest_scores", scores_work, &LargestScoresArgs::top,
                                                   kScores};
constexpr Kernel<ScaleColumnsArgs> kScaleColumns{"scale_columns", columns_work, &ScaleColumnsArgs::x,
                                                 kColumns};

}  // namespace

void largest_scores(ThreadPool& pool, const TensorView& top, const TensorView& largest) {
  CHECK(top.rank() == 3 && top.dtype() == DType::f32 && largest.dtype() == DType::f32 &&
            largest.shape() == Shape{top.dim(1)} && top.is_contiguous() && largest.is_contiguous(),
        "[largest_scores] {} of {} into {} of {}", to_string(top.shape()), name_of(top.dtype()),
        to_string(largest.shape()), name_of(largest.dtype()));
  run(pool, kLargestScores, {top, largest});
}

void scale_columns(ThreadPool& pool, const ScaleColumnsArgs& args) {
  CHECK(is_float(args.x.dtype()) && args.factors.dtype() == DType::f32 && args.first >= 0 &&
            (args.factors.size() > 0 || args.x.size() == 0) && args.x.is_contiguous() &&
            args.factors.is_contiguous(),
        "[scale_columns] {} of {} from {} on by {} of {}", to_string(args.x.shape()), name_of(args.x.dtype()),
        args.first, to_string(args.factors.shape()), name_of(args.factors.dtype()));
  run(pool, kScaleColumns, args);
}

}  // namespace switchyard
