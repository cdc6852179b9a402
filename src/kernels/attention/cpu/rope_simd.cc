// Rotary embedding for AVX2 and AVX-512. A vector holds one element of each of its pairs; both are read
// before either is written, so in place is safe.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/rope_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/attention/rope_problem.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/registry/simd_rows.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kStep = static_cast<std::int64_t>(lanes::kLanes);

HWY_INLINE lanes::Split turned(lanes::Split pair, lanes::V cos, lanes::V sin) {
  return {hn::NegMulAdd(pair.odd, sin, hn::Mul(pair.even, cos)),
          hn::MulAdd(pair.even, sin, hn::Mul(pair.odd, cos))};
}

// sin with the sign of the direction.
HWY_INLINE lanes::V directed(lanes::V sin, bool inverse) {
  return inverse ? hn::Neg(sin) : sin;
}

template <typename T>
HWY_INLINE void rotate_halves(const T* x, T* y, std::int64_t half, const float* cos, const float* sin,
                              bool inverse) {
  std::int64_t i = 0;
  for (; i + kStep <= half; i += kStep) {
    const lanes::Split pair = turned({lanes::load(x + i), lanes::load(x + half + i)}, lanes::load(cos + i),
                                     directed(lanes::load(sin + i), inverse));
    lanes::store(pair.even, y + i);
    lanes::store(pair.odd, y + half + i);
  }
  if (i == half) return;
  const auto rest = static_cast<std::size_t>(half - i);
  const lanes::Split pair =
      turned({lanes::load_some(x + i, rest), lanes::load_some(x + half + i, rest)},
             lanes::load_some(cos + i, rest), directed(lanes::load_some(sin + i, rest), inverse));
  lanes::store_some(pair.even, y + i, rest);
  lanes::store_some(pair.odd, y + half + i, rest);
}

template <typename T>
HWY_INLINE void rotate_pairs(const T* x, T* y, std::int64_t half, const float* cos, const float* sin,
                             bool inverse) {
  std::int64_t i = 0;
  for (; i + kStep <= half; i += kStep) {
    lanes::store_pairs(
        turned(lanes::load_pairs(x + 2 * i), lanes::load(cos + i), directed(lanes::load(sin + i), inverse)),
        y + 2 * i);
  }
  if (i == half) return;
  const auto rest = static_cast<std::size_t>(half - i);
  T buffer[2 * lanes::kLanes] = {};
  for (std::size_t k = 0; k < 2 * rest; ++k) buffer[k] = x[2 * i + static_cast<std::int64_t>(k)];
  lanes::store_pairs(turned(lanes::load_pairs(buffer), lanes::load_some(cos + i, rest),
                            directed(lanes::load_some(sin + i, rest), inverse)),
                     buffer);
  for (std::size_t k = 0; k < 2 * rest; ++k) y[2 * i + static_cast<std::int64_t>(k)] = buffer[k];
}

template <typename T>
void rotate_tokens(const RopeProblem& p, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = p.dim / 2;
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < p.heads; ++h) {
      const std::int64_t at = t * p.token_stride + h * p.head_stride;
      const auto* x = static_cast<const T*>(p.x) + at;
      auto* y = static_cast<T*>(p.y) + at;
      const float *cos = p.cos + t * half, *sin = p.sin + t * half;
      p.interleaved ? rotate_pairs(x, y, half, cos, sin, p.inverse)
                    : rotate_halves(x, y, half, cos, sin, p.inverse);
    }
  }
}

}  // namespace

void rope_simd(const RopeProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? rotate_tokens<float>(p, begin, end) : rotate_tokens<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(rope, (const RopeProblem& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
