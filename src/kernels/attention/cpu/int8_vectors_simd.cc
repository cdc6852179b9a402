// Vectors to and from 8 bits for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/int8_vectors_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention/int8_vectors_problem.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

// body(first element, vector of x) over x of `dim` elements; zeros after its end.
template <typename T, typename Body>
HWY_INLINE void each_step(const T* x, std::int64_t dim, const Body& body) {
  std::int64_t d = 0;
  for (; d + kStep <= dim; d += kStep) body(d, lanes::load(x + d));
  if (d < dim) body(d, lanes::load_some(x + d, static_cast<std::size_t>(dim - d)));
}

// max|x| / 127; NaN where a number is not finite.
template <typename T>
float scale_of(const T* x, std::int64_t dim) {
  const D lane;
  V most = hn::Zero(lane), nothing = hn::Zero(lane);
  each_step(x, dim, [&](std::int64_t, V v) {
    most = hn::Max(most, hn::Abs(v));
    nothing = hn::MulAdd(v, hn::Zero(lane), nothing);  // of a number that is not finite, 0 times it is NaN
  });
  if (hn::GetLane(hn::SumOfLanes(lane, nothing)) != 0) return std::numeric_limits<float>::quiet_NaN();
  return hn::GetLane(hn::MaxOfLanes(lane, most)) / kLargestInt8;
}

template <typename T>
void vector_to_int8(const T* x, std::int64_t dim, std::int8_t* values, float& scale) {
  const D lane;
  const hn::Rebind<std::int8_t, D> narrow;
  scale = scale_of(x, dim);
  if (!(scale > 0)) {
    std::fill_n(values, dim, std::int8_t{0});
    return;
  }
  const V divisor = hn::Set(lane, scale), largest = hn::Set(lane, kLargestInt8);
  each_step(x, dim, [&](std::int64_t d, V v) {
    // The quotient of a subnormal number may be larger than 127.
    const V within = hn::Max(hn::Min(hn::Div(v, divisor), largest), hn::Neg(largest));
    const auto rounded = hn::DemoteTo(narrow, hn::NearestInt(within));
    if (d + kStep <= dim) {
      hn::StoreU(rounded, narrow, values + d);
      return;
    }
    std::int8_t buffer[lanes::kLanes];
    hn::StoreU(rounded, narrow, buffer);
    std::copy_n(buffer, dim - d, values + d);
  });
}

template <typename T>
void vector_from_int8(const std::int8_t* values, std::int64_t dim, float scale, T* x) {
  const V factor = hn::Set(D(), scale);
  each_step(values, dim, [&](std::int64_t d, V v) {
    if (d + kStep <= dim)
      lanes::store(hn::Mul(v, factor), x + d);
    else
      lanes::store_some(hn::Mul(v, factor), x + d, static_cast<std::size_t>(dim - d));
  });
}

template <typename T>
void tokens_to_int8(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < p.heads; ++h)
      vector_to_int8(static_cast<const T*>(p.x) + p.of_x.at(t, h), p.dim, p.values + p.of_values.at(t, h),
                     p.scales[p.of_scales.at(t, h)]);
  }
}

template <typename T>
void tokens_from_int8(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < p.heads; ++h)
      vector_from_int8(p.values + p.of_values.at(t, h), p.dim, p.scales[p.of_scales.at(t, h)],
                       static_cast<T*>(p.x) + p.of_x.at(t, h));
  }
}

}  // namespace

void to_int8_simd(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? tokens_to_int8<float>(p, begin, end) : tokens_to_int8<bfloat16>(p, begin, end);
}

void from_int8_simd(const Int8VectorsProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? tokens_from_int8<float>(p, begin, end) : tokens_from_int8<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(to_int8, (const Int8VectorsProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(from_int8, (const Int8VectorsProblem& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
