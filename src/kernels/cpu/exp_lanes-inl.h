// Exponentials of vectors of floats. Included once per instruction set, inside a file that uses
// hwy/foreach_target.h.
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

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
