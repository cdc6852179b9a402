// Exponentials of vectors of floats. Included once per instruction set, inside
// a file that uses hwy/foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/elementwise_lanes-inl.h"

#if defined(SWITCHYARD_EXP_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_EXP_LANES_INL_H_
#undef SWITCHYARD_EXP_LANES_INL_H_
#else
#define SWITCHYARD_EXP_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace lanes {

// hn::Exp gives 0 for NaN, which would hide a broken model.
HWY_INLINE V exp_keeping_nan(V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(D(), x));
}

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// 2^x to 2e-7 relative, and 1 for 0 exactly; 0 below 2^-126, infinity from 2^127.5, NaN for NaN.
// Half as long as hn::Exp.
HWY_INLINE V exp2_keeping_nan(V x) {
  const D d;
  const hn::RebindToUnsigned<D> bits;
  // The sum's last bits are the nearest integer plus the bias of an exponent.
  const V magic = hn::Set(d, 12582912.0f + 127.0f);
  const V shifted = hn::Add(hn::Min(x, hn::Set(d, 128.0f)), magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));  // in [-1/2, 1/2]
  // The minimax polynomial with 1 at 0.
  V p = hn::MulAdd(hn::Set(d, 0.00132647273f), f, hn::Set(d, 0.00967151299f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555073358f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240222424f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147004f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -126.0f)), hn::Mul(p, power));
}

// e^(x - from), exact where the two are the same. The rounding before 2^x grows with the
// difference, not with either number.
HWY_INLINE V exp_of_difference(V x, V from) {
  return exp2_keeping_nan(hn::Mul(hn::Sub(x, from), hn::Set(D(), kLog2E)));
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
