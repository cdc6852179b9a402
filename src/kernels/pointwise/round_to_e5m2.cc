#include "kernels/pointwise/round_to_e5m2.h"

#include <algorithm>
#include <cmath>

#include "kernels/pointwise/float_elements.h"
#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kRowsAtOnce = 16;

template <typename T>
void round_row(const T* x, std::int64_t width, float bound, T* out) {
  float largest = bound;
  for (std::int64_t i = 0; i < width && bound == 0; ++i)
    largest = std::max(largest, std::abs(static_cast<float>(x[i])));
  const float scale = largest / kLargestE5m2;
  for (std::int64_t i = 0; i < width; ++i) {
    const float value = static_cast<float>(x[i]);
    out[i] = static_cast<T>(scale == 0 ? value : scale * nearest_e5m2(value / scale));
  }
}

void round_rows(ThreadPool& pool, const RoundToE5m2Args& args) {
  const std::int64_t width = args.x.dim(1);
  with_elements(args.x.dtype(), [&]<typename T>(T) {
    const T* const from = args.x.kernel_data<T>();
    T* const to = args.out.kernel_data<T>();
    pool.for_range(args.x.dim(0), kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        round_row(from + r * width, width, args.bound, to + r * width);
    });
  });
}

Work work_of(const RoundToE5m2Args& args) {
  return {.dtype = args.x.dtype(),
          .flops = 6 * static_cast<double>(args.x.size()),
          .bytes = static_cast<double>(args.x.bytes() + args.out.bytes())};
}

constexpr Implementation<RoundToE5m2Args> kRoundToE5m2Rows[] = {{"cuda", Gpu::any, gpu::round_to_e5m2},
                                                                {"portable", Isa::ref, round_rows}};
constexpr Kernel<RoundToE5m2Args> kRoundToE5m2{"round_to_e5m2", work_of, &RoundToE5m2Args::x,
                                               kRoundToE5m2Rows};

}  // namespace

void round_to_e5m2(ThreadPool& pool, const RoundToE5m2Args& args) {
  const auto& [x, out, bound] = args;
  CHECK(x.rank() == 2 && x.shape() == out.shape() && x.dtype() == out.dtype() && x.is_contiguous() &&
            out.is_contiguous() && bound >= 0,
        "[round_to_e5m2] {} {} to {} {}, bound {}", name_of(x.dtype()), to_string(x.shape()),
        name_of(out.dtype()), to_string(out.shape()), bound);
  run(pool, kRoundToE5m2, args);
}

}  // namespace switchyard
