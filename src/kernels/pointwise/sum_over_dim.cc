#include "kernels/pointwise/sum_over_dim.h"

#include <algorithm>
#include <vector>

#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

float widened(float x) {
  return x;
}
float widened(bfloat16 x) {
  return static_cast<float>(x);
}

template <typename T>
void sum(ThreadPool& pool, const SumOverDimArgs& args) {
  const auto& [x, dim, out] = args;
  // The dims before the last, but for the summed one: an odometer over rows of out.
  Shape sizes, strides;
  for (std::size_t i = 0; i + 1 < x.rank(); ++i) {
    if (i == dim) continue;
    sizes.push_back(x.dim(i));
    strides.push_back(x.stride(i));
  }
  const std::int64_t width = x.dim(x.rank() - 1), terms = x.dim(dim), step = x.stride(dim);
  const std::int64_t rows = width == 0 ? 0 : out.size() / width;
  const T* const from = x.kernel_data<T>();
  T* const to = out.kernel_data<T>();
  constexpr std::int64_t kTerms = 65536;  // terms a piece: long against handing it out
  const std::int64_t grain = std::max<std::int64_t>(1, kTerms / std::max<std::int64_t>(1, terms * width));
  pool.for_range(rows, grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> sums(static_cast<std::size_t>(width));
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t at = 0, rest = row;
      for (std::size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) at += rest % sizes[d] * strides[d];
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (std::int64_t t = 0; t < terms; ++t) {
        const T* const term = from + at + t * step;
        for (std::int64_t i = 0; i < width; ++i) sums[static_cast<std::size_t>(i)] += widened(term[i]);
      }
      for (std::int64_t i = 0; i < width; ++i) to[row * width + i] = T(sums[static_cast<std::size_t>(i)]);
    }
  });
}

void sum_terms(ThreadPool& pool, const SumOverDimArgs& args) {
  args.x.dtype() == DType::f32 ? sum<float>(pool, args) : sum<bfloat16>(pool, args);
}

Work work_of(const SumOverDimArgs& args) {
  return {.dtype = args.x.dtype(),
          .flops = static_cast<double>(args.x.size()),
          .bytes = static_cast<double>(args.x.bytes() + args.out.bytes())};
}

constexpr Implementation<SumOverDimArgs> kSumOverDimRows[] = {{"cuda", Gpu::any, gpu::sum_over_dim},
                                                              {"portable", Isa::ref, sum_terms}};
constexpr Kernel<SumOverDimArgs> kSumOverDim{"sum_over_dim", work_of, &SumOverDimArgs::x, kSumOverDimRows};

}  // namespace

void sum_over_dim(ThreadPool& pool, const TensorView& x, std::size_t dim, const TensorView& out) {
  CHECK(dim + 1 < x.rank() && x.dtype() == out.dtype() && is_float(x.dtype()) &&
            out.size() * x.dim(dim) == x.size() && out.is_contiguous(),
        "[sum_over_dim] dim {} of {} into {}", dim, to_string(x.shape()), to_string(out.shape()));
  run(pool, kSumOverDim, {x, dim, out});
}

}  // namespace switchyard
