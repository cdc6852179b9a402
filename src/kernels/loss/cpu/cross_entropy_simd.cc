// Passes over the rows of a block of logits, for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss/cpu/cross_entropy_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <algorithm>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/exp_lanes-inl.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

// The last vector's unused lanes hold `rest`.
HWY_INLINE V load_part(const float* x, std::int64_t count, float rest) {
  if (count >= kStep) return lanes::load(x);
  const auto used = hn::FirstN(D(), static_cast<std::size_t>(count));
  return hn::IfThenElse(used, lanes::load_some(x, static_cast<std::size_t>(count)), hn::Set(D(), rest));
}

template <typename T>
HWY_INLINE void store_part(V v, T* x, std::int64_t count) {
  count >= kStep ? lanes::store(v, x) : lanes::store_some(v, x, static_cast<std::size_t>(count));
}

void cap_row(float* x, std::int64_t count, float soft_cap) {
  const D d;
  const V cap = hn::Set(d, soft_cap);
  for (std::int64_t i = 0; i < count; i += kStep) {
    const V ratio = hn::Div(load_part(x + i, count - i, 0), cap);
    store_part(hn::Mul(cap, hn::Tanh(d, ratio)), x + i, count - i);
  }
}

}  // namespace

void row_sum_update_simd(float* x, std::int64_t count, float soft_cap, RowSum& row) {
  const D d;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (soft_cap > 0) cap_row(x, count, soft_cap);
  V maxima = hn::Set(d, -kInfinity);
  std::int64_t begin = 0;
  for (; begin + 4 * kStep <= count; begin += 4 * kStep) {
    const V first = hn::Max(lanes::load(x + begin), lanes::load(x + begin + kStep));
    const V last = hn::Max(lanes::load(x + begin + 2 * kStep), lanes::load(x + begin + 3 * kStep));
    maxima = hn::Max(maxima, hn::Max(first, last));
  }
  for (; begin < count; begin += kStep)
    maxima = hn::Max(maxima, load_part(x + begin, count - begin, -kInfinity));
  const float maximum = std::max(row.maximum, hn::GetLane(hn::MaxOfLanes(d, maxima)));
  const V shift = hn::Set(d, maximum);
  V sum = hn::Zero(d);
  for (std::int64_t i = 0; i < count; i += kStep) {
    sum = hn::Add(sum, lanes::exp_of_difference(load_part(x + i, count - i, -kInfinity), shift));
  }
  const float before = row.sum > 0 ? row.sum * std::exp(row.maximum - maximum) : row.sum;
  row = {maximum, before + hn::GetLane(hn::SumOfLanes(d, sum))};
}

void row_gradient_simd(float* x, std::int64_t count, const RowGradient& row, bfloat16* rounded) {
  const D d;
  const V shift = hn::Set(d, row.lse);
  const V scale = hn::Set(d, row.softmax_coefficient);
  if (row.soft_cap > 0) cap_row(x, count, row.soft_cap);
  const float target_logit = row.target >= 0 ? x[row.target] : 0.0f;
  for (std::int64_t i = 0; i < count; i += kStep) {
    const V logit = load_part(x + i, count - i, 0);
    V g = hn::Mul(lanes::exp_of_difference(logit, shift), scale);
    if (row.soft_cap > 0) {
      const V ratio = hn::Div(logit, hn::Set(d, row.soft_cap));
      g = hn::Mul(g, hn::NegMulAdd(ratio, ratio, hn::Set(d, 1.0f)));
    }
    rounded ? store_part(g, rounded + i, count - i) : store_part(g, x + i, count - i);
  }
  if (row.target < 0) return;
  const float ratio = row.soft_cap > 0 ? target_logit / row.soft_cap : 0.0f;
  const float p = row.softmax_coefficient * std::exp(target_logit - row.lse);
  const float g = (p - row.target_coefficient) * (1 - ratio * ratio);
  if (rounded)
    rounded[row.target] = bfloat16(g);
  else
    x[row.target] = g;
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

SWITCHYARD_SIMD_EXPORT(row_sum_update, (float* x, std::int64_t count, float soft_cap, RowSum& row),
                       (x, count, soft_cap, row))
SWITCHYARD_SIMD_EXPORT(row_gradient,
                       (float* x, std::int64_t count, const RowGradient& row, bfloat16* rounded),
                       (x, count, row, rounded))

}  // namespace switchyard::cpu
#endif
