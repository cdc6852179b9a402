// Transposes of f32 and bf16 matrices to f32. Included once per instruction set, inside
// a file that uses hwy/foreach_target.h.
#include "kernels/cpu/elementwise_lanes-inl.h"

#if defined(SWITCHYARD_TRANSPOSE_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_TRANSPOSE_LANES_INL_H_
#undef SWITCHYARD_TRANSPOSE_LANES_INL_H_
#else
#define SWITCHYARD_TRANSPOSE_LANES_INL_H_
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace lanes {

using Four = hn::FixedTag<float, 4>;

HWY_INLINE hn::Vec<Four> load_four(const float* x) {
  return hn::LoadU(Four(), x);
}

HWY_INLINE hn::Vec<Four> load_four(const bfloat16* x) {
  const hn::Rebind<std::uint16_t, Four> narrow;
  const hn::RebindToUnsigned<Four> wide;
  const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, reinterpret_cast<const std::uint16_t*>(x)));
  return hn::BitCast(Four(), hn::ShiftLeft<16>(bits));
}

// out[l * out_stride + i] = x[i * stride + l] for four i and l < depth, in 4 x 4 transposes: by element it
// would take a third of a small product's time.
template <typename T>
HWY_INLINE void transpose_four(const T* x, std::int64_t stride, std::int64_t depth, float* out,
                               std::int64_t out_stride) {
  const Four four;
  const hn::FixedTag<double, 2> two;
  std::int64_t l = 0;
  for (; l + 4 <= depth; l += 4, out += 4 * out_stride) {
    const auto r0 = load_four(x + l), r1 = load_four(x + stride + l);
    const auto r2 = load_four(x + 2 * stride + l), r3 = load_four(x + 3 * stride + l);
    const auto low01 = hn::BitCast(two, hn::InterleaveLower(four, r0, r1));
    const auto high01 = hn::BitCast(two, hn::InterleaveUpper(four, r0, r1));
    const auto low23 = hn::BitCast(two, hn::InterleaveLower(four, r2, r3));
    const auto high23 = hn::BitCast(two, hn::InterleaveUpper(four, r2, r3));
    hn::StoreU(hn::BitCast(four, hn::InterleaveLower(two, low01, low23)), four, out);
    hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(two, low01, low23)), four, out + out_stride);
    hn::StoreU(hn::BitCast(four, hn::InterleaveLower(two, high01, high23)), four, out + 2 * out_stride);
    hn::StoreU(hn::BitCast(four, hn::InterleaveUpper(two, high01, high23)), four, out + 3 * out_stride);
  }
  for (; l < depth; ++l, out += out_stride) {
    for (std::int64_t i = 0; i < 4; ++i) out[i] = static_cast<float>(x[i * stride + l]);
  }
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#endif  // per-target include guard
