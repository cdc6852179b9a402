// Vectors of floats loaded from and stored to f32 or bf16 memory, whole or in part. Included once per
// instruction set, inside a file that uses hwy/foreach_target.h.
#include "core/dtype.h"
#include "hwy/highway.h"

#if defined(SWITCHYARD_ELEMENTWISE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_ELEMENTWISE_LANES_INL_H_
#undef SWITCHYARD_ELEMENTWISE_LANES_INL_H_
#else
#define SWITCHYARD_ELEMENTWISE_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace lanes {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
constexpr std::size_t kLanes = HWY_MAX_BYTES / sizeof(float);  // x86: vectors have this size exactly

HWY_INLINE V load(const float* x) {
  return hn::LoadU(D(), x);
}

HWY_INLINE V load(const bfloat16* x) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(x)));
  return hn::BitCast(D(), hn::ShiftLeft<16>(bits));
}

HWY_INLINE void store(V v, float* x) {
  hn::StoreU(v, D(), x);
}

// Rounds as bfloat16(float) does: to nearest, ties to even, a NaN stays a (quiet) NaN.
HWY_INLINE void store(V v, bfloat16* x) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  const hn::RebindToSigned<D> wide_signed;
  const auto bits = hn::BitCast(wide, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(wide, 0x7fff), odd));
  const auto quiet = hn::Or(bits, hn::Set(wide, 0x400000));
  const auto word = hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(v)), quiet, rounded);
  // The upper halves are 0..65535, which the saturating conversion keeps.
  const auto half = hn::DemoteTo(narrow, hn::BitCast(wide_signed, hn::ShiftRight<16>(word)));
  hn::StoreU(half, narrow, reinterpret_cast<std::uint16_t*>(x));
}

// The first `count` < kLanes elements; the other lanes are zero.
template <typename T>
HWY_INLINE V load_some(const T* x, std::size_t count) {
  T buffer[kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) buffer[i] = x[i];
  return load(buffer);
}

template <typename T>
HWY_INLINE void store_some(V v, T* x, std::size_t count) {
  T buffer[kLanes];
  store(v, buffer);
  for (std::size_t i = 0; i < count; ++i) x[i] = buffer[i];
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
