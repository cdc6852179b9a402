// The logistic function of vectors of floats, and vectors at the end of a row. Included once per instruction
// set, inside a file that uses hwy/foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/elementwise_lanes-inl.h"

#if defined(SWITCHYARD_SIGMOID_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_SIGMOID_LANES_INL_H_
#undef SWITCHYARD_SIGMOID_LANES_INL_H_
#else
#define SWITCHYARD_SIGMOID_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace lanes {

constexpr std::int64_t kStep = static_cast<std::int64_t>(kLanes);

// The vector at x, of which `count` elements are there.
template <typename T>
HWY_INLINE V load_part(const T* x, std::int64_t count) {
  return count >= kStep ? load(x) : load_some(x, static_cast<std::size_t>(count));
}

template <typename T>
HWY_INLINE void store_part(V v, T* x, std::int64_t count) {
  count >= kStep ? store(v, x) : store_some(v, x, static_cast<std::size_t>(count));
}

// 1 / (1 + exp(-x)). The exponent is kept below overflow: 88 already gives zero beside any normal number.
HWY_INLINE V sigmoid(V x, float /*of this type*/) {
  const V one = hn::Set(D(), 1.0f);
  return hn::Div(one, hn::Add(one, hn::Exp(D(), hn::Min(hn::Neg(x), hn::Set(D(), 88.0f)))));
}

// The sigmoid to 3e-6, for results that are rounded to bf16 (4e-3) next: 2^t = 2^n · p(t - n), n the nearest
// integer and p the minimax polynomial of degree 4 on [-1/2, 1/2]; one Newton step refines the reciprocal.
HWY_INLINE V sigmoid(V x, bfloat16 /*of this type*/) {
  const hn::RebindToSigned<D> whole;
  const V limit = hn::Set(D(), 126.0f);
  const V t = hn::Max(hn::Min(hn::Mul(x, hn::Set(D(), -1.44269504f)), limit), hn::Neg(limit));
  const V n = hn::Round(t), f = hn::Sub(t, n);
  V p = hn::MulAdd(hn::Set(D(), 0.00957010191f), f, hn::Set(D(), 0.0559178603f));
  p = hn::MulAdd(p, f, hn::Set(D(), 0.240247448f));
  p = hn::MulAdd(p, f, hn::Set(D(), 0.693121815f));
  p = hn::MulAdd(p, f, hn::Set(D(), 0.999999261f));
  const auto exponent = hn::ShiftLeft<23>(hn::ConvertTo(whole, n));
  const V e = hn::BitCast(D(), hn::Add(hn::BitCast(whole, p), exponent));
  const V y = hn::Add(hn::Set(D(), 1.0f), e), guess = hn::ApproximateReciprocal(y);
  const V result = hn::Mul(guess, hn::NegMulAdd(y, guess, hn::Set(D(), 2.0f)));
  return hn::IfThenElse(hn::IsNaN(x), x, result);  // Min and Max drop a NaN
}

}  // namespace lanes
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#endif
