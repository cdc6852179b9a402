// Vectors of floats loaded from and stored to f32 or bf16 memory, and loaded from int8, whole or in part.
// Included once per instruction set, inside a file that uses hwy/foreach_target.h.
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

HWY_INLINE V load(const std::int8_t* x) {
  const hn::Rebind<std::int8_t, D> narrow;
  const hn::RebindToSigned<D> wide;
  return hn::ConvertTo(D(), hn::PromoteTo(wide, hn::LoadU(narrow, x)));
}

HWY_INLINE void store(V v, float* x) {
  hn::StoreU(v, D(), x);
}

// The bits of v rounded as bfloat16(float) does, in the upper half of each lane (the lower half is left
// over): to nearest, ties to even, a NaN stays a (quiet) NaN.
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> rounded_bits(V v) {
  const hn::RebindToUnsigned<D> wide;
  const auto bits = hn::BitCast(wide, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(wide, 1));
  const auto rounded = hn::Add(bits, hn::Add(hn::Set(wide, 0x7fff), odd));
  const auto quiet = hn::Or(bits, hn::Set(wide, 0x400000));
  return hn::IfThenElse(hn::RebindMask(wide, hn::IsNaN(v)), quiet, rounded);
}

HWY_INLINE auto to_bfloat16(V v) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToSigned<D> wide_signed;
  // The upper halves are 0..65535, which the saturating conversion keeps.
  return hn::DemoteTo(narrow, hn::BitCast(wide_signed, hn::ShiftRight<16>(rounded_bits(v))));
}

HWY_INLINE void store(V v, bfloat16* x) {
  const hn::Rebind<std::uint16_t, D> narrow;
  hn::StoreU(to_bfloat16(v), narrow, reinterpret_cast<std::uint16_t*>(x));
}

// Elements 2i and 2i + 1 of 2 * kLanes.
struct Split {
  V even;
  V odd;
};

HWY_INLINE Split load_pairs(const float* x) {
  Split s{hn::Undefined(D()), hn::Undefined(D())};
  hn::LoadInterleaved2(D(), x, s.even, s.odd);
  return s;
}

HWY_INLINE Split load_pairs(const bfloat16* x) {
  const hn::RebindToUnsigned<D> wide;
  const auto pairs = hn::LoadU(wide, reinterpret_cast<const std::uint32_t*>(x));
  return {hn::BitCast(D(), hn::ShiftLeft<16>(pairs)),
          hn::BitCast(D(), hn::And(pairs, hn::Set(wide, 0xffff0000u)))};
}

// 2 * kLanes elements, as even and odd ones or as the two halves.
template <bool pairs, typename T>
HWY_INLINE Split load_block(const T* x) {
  if constexpr (pairs)
    return load_pairs(x);
  else
    return {load(x), load(x + kLanes)};
}

HWY_INLINE void store_pairs(Split s, float* x) {
  hn::StoreInterleaved2(s.even, s.odd, D(), x);
}

HWY_INLINE void store_pairs(Split s, bfloat16* x) {
  const hn::RebindToUnsigned<D> wide;
  const auto odd = hn::And(rounded_bits(s.odd), hn::Set(wide, 0xffff0000u));
  hn::StoreU(hn::Or(hn::ShiftRight<16>(rounded_bits(s.even)), odd), wide,
             reinterpret_cast<std::uint32_t*>(x));
}

// The first `count` < kLanes elements; the other lanes are zero. Memory past them is not touched.
#if HWY_TARGET <= HWY_AVX3  // whose masked accesses leave alone what is masked off
HWY_INLINE V load_some(const float* x, std::size_t count) {
  return hn::MaskedLoad(hn::FirstN(D(), count), D(), x);
}

HWY_INLINE V load_some(const bfloat16* x, std::size_t count) {
  const hn::Rebind<std::uint16_t, D> narrow;
  const hn::RebindToUnsigned<D> wide;
  const auto some =
      hn::MaskedLoad(hn::FirstN(narrow, count), narrow, reinterpret_cast<const std::uint16_t*>(x));
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(wide, some)));
}

HWY_INLINE V load_some(const std::int8_t* x, std::size_t count) {
  const hn::Rebind<std::int8_t, D> narrow;
  const hn::RebindToSigned<D> wide;
  const auto some = hn::MaskedLoad(hn::FirstN(narrow, count), narrow, x);
  return hn::ConvertTo(D(), hn::PromoteTo(wide, some));
}

HWY_INLINE void store_some(V v, float* x, std::size_t count) {
  hn::BlendedStore(v, hn::FirstN(D(), count), D(), x);
}

HWY_INLINE void store_some(V v, bfloat16* x, std::size_t count) {
  const hn::Rebind<std::uint16_t, D> narrow;
  hn::BlendedStore(to_bfloat16(v), hn::FirstN(narrow, count), narrow, reinterpret_cast<std::uint16_t*>(x));
}
#else
template <typename T>
HWY_INLINE V load_some(const T* x, std::size_t count) {
  T buffer[kLanes] = {};
  for (std::size_t i = 0; i < count; ++i) buffer[i] = x[i];
  return load(buffer);
}

template <typename T>
HWY_INLINE void store_some(V v, T* x, std::size_t count) {
  T buffer[kLanes] = {};
  store(v, buffer);
  for (std::size_t i = 0; i < count; ++i) x[i] = buffer[i];
}
#endif

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
