// RMS norm rows for AVX2 and AVX-512: two passes over a row, which is in L1 for the second where it is whole.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pointwise/cpu/rms_norm_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/pointwise/rms_norm_problem.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

template <typename T>
HWY_INLINE lanes::V load_part(const T* x, std::int64_t count) {
  return count >= kStep ? lanes::load(x) : lanes::load_some(x, static_cast<std::size_t>(count));
}

template <typename T>
HWY_INLINE void store_part(lanes::V v, T* x, std::int64_t count) {
  count >= kStep ? lanes::store(v, x) : lanes::store_some(v, x, static_cast<std::size_t>(count));
}

HWY_INLINE float sum_of(lanes::V v) {
  return hn::GetLane(hn::SumOfLanes(lanes::D(), v));
}

template <typename T>
float square_sum(const T* x, std::int64_t dim) {
  auto sum = hn::Zero(lanes::D());
  for (std::int64_t i = 0; i < dim; i += kStep) {
    const auto v = load_part(x + i, dim - i);
    sum = hn::MulAdd(v, v, sum);
  }
  return sum_of(sum);
}

template <typename T, typename S>
float scaled_dot(const T* x, const S* scale, float offset, const T* dy, std::int64_t dim) {
  const auto added = hn::Set(lanes::D(), offset);
  auto sum = hn::Zero(lanes::D());
  for (std::int64_t i = 0; i < dim; i += kStep) {
    const auto u = hn::Mul(load_part(dy + i, dim - i), hn::Add(load_part(scale + i, dim - i), added));
    sum = hn::MulAdd(u, load_part(x + i, dim - i), sum);
  }
  return sum_of(sum);
}

template <typename T, typename S>
void forward_row(const T* x, const S* scale, float offset, std::int64_t dim, float rstd, T* y) {
  const auto inverse = hn::Set(lanes::D(), rstd), added = hn::Set(lanes::D(), offset);
  for (std::int64_t i = 0; i < dim; i += kStep) {
    const auto v = hn::Mul(load_part(x + i, dim - i), inverse);
    store_part(hn::Mul(v, hn::Add(load_part(scale + i, dim - i), added)), y + i, dim - i);
  }
}

template <typename T, typename S>
void backward_row(const T* x, const S* scale, float offset, float rstd, float mean, const T* dy,
                  std::int64_t dim, T* dx, float* dscale) {
  const lanes::D d;
  const auto inverse = hn::Set(d, rstd);
  const auto factor = hn::Set(d, rstd * rstd * mean), added = hn::Set(d, offset);
  for (std::int64_t i = 0; i < dim; i += kStep) {
    const auto v = load_part(x + i, dim - i);
    const auto g = load_part(dy + i, dim - i);
    const auto u = hn::Mul(g, hn::Add(load_part(scale + i, dim - i), added));
    store_part(hn::MulAdd(hn::Mul(g, v), inverse, load_part(dscale + i, dim - i)), dscale + i, dim - i);
    store_part(hn::Mul(inverse, hn::NegMulAdd(v, factor, u)), dx + i, dim - i);
  }
}

template <typename T, typename S>
void forward_typed(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const x = static_cast<const T*>(p.x) + r * p.dim;
    const float sum = p.pass == RowPass::rest ? p.sums[r] : square_sum(x, p.dim);
    if (p.pass == RowPass::sum) {
      p.sums[r] = sum;
      continue;
    }
    p.rstd[r] = 1.0f / std::sqrt(sum / static_cast<float>(p.whole_dim) + p.eps);
    forward_row(x, static_cast<const S*>(p.scale), p.scale_offset, p.dim, p.rstd[r],
                static_cast<T*>(p.y) + r * p.dim);
  }
}

template <typename T, typename S>
void backward_typed(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  if (p.pass != RowPass::sum) std::fill(dscale, dscale + p.dim, 0.0f);
  const S* const scale = static_cast<const S*>(p.scale);
  for (std::int64_t r = begin; r < end; ++r) {
    const T* const x = static_cast<const T*>(p.x) + r * p.dim;
    const T* const dy = static_cast<const T*>(p.dy) + r * p.dim;
    const float sum = p.pass == RowPass::rest ? p.sums[r] : scaled_dot(x, scale, p.scale_offset, dy, p.dim);
    if (p.pass == RowPass::sum)
      p.sums[r] = sum;
    else
      backward_row(x, scale, p.scale_offset, p.rstd[r], sum / static_cast<float>(p.whole_dim), dy, p.dim,
                   static_cast<T*>(p.dx) + r * p.dim, dscale);
  }
}

}  // namespace

void rms_norm_simd(const RmsNormProblem& p, std::int64_t begin, std::int64_t end) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? forward_typed<float, float>(p, begin, end) : forward_typed<float, bfloat16>(p, begin, end);
  } else {
    wide_scale ? forward_typed<bfloat16, float>(p, begin, end)
               : forward_typed<bfloat16, bfloat16>(p, begin, end);
  }
}

void rms_norm_backward_simd(const RmsNormProblem& p, std::int64_t begin, std::int64_t end, float* dscale) {
  const bool wide_scale = p.scale_dtype == DType::f32;
  if (p.dtype == DType::f32) {
    wide_scale ? backward_typed<float, float>(p, begin, end, dscale)
               : backward_typed<float, bfloat16>(p, begin, end, dscale);
  } else {
    wide_scale ? backward_typed<bfloat16, float>(p, begin, end, dscale)
               : backward_typed<bfloat16, bfloat16>(p, begin, end, dscale);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(rms_norm, (const RmsNormProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(rms_norm_backward, (const RmsNormProblem& p, I begin, I end, float* dscale),
                       (p, begin, end, dscale))

}  // namespace switchyard::cpu
#endif
