// Formulas for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/element/cpu/element.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <type_traits>
#include <utility>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/sigmoid_lanes-inl.h"
#include "kernels/element/kernels.h"
#include "kernels/element/single.h"
#include "kernels/registry/simd_rows.h"

#undef ELEMENT
#define ELEMENT HWY_INLINE

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::V;

// A vector of elements T, whose functions need be no better than T.
template <class T>
struct Number {
  static constexpr std::int64_t kStep = lanes::kStep;

  V v;

  HWY_INLINE explicit Number(V of) : v(of) {}
  HWY_INLINE explicit Number(float of) : v(hn::Set(D(), of)) {}
  template <class From>
  HWY_INLINE static Number load(const From* from, std::int64_t count) {
    return Number(lanes::load_part(from, count));
  }
  template <class To>
  HWY_INLINE void store(To* to, std::int64_t count) const {
    lanes::store_part(v, to, count);
  }
  HWY_INLINE float sum() const { return hn::GetLane(hn::SumOfLanes(D(), v)); }

  friend HWY_INLINE Number operator+(Number x, Number y) { return Number(hn::Add(x.v, y.v)); }
  friend HWY_INLINE Number operator-(Number x, Number y) { return Number(hn::Sub(x.v, y.v)); }
  friend HWY_INLINE Number operator*(Number x, Number y) { return Number(hn::Mul(x.v, y.v)); }
  friend HWY_INLINE Number operator/(Number x, Number y) { return Number(hn::Div(x.v, y.v)); }
  friend HWY_INLINE auto operator<(Number x, Number y) { return hn::Lt(x.v, y.v); }
  friend HWY_INLINE auto operator>(Number x, Number y) { return hn::Gt(x.v, y.v); }
  friend HWY_INLINE auto operator<=(Number x, Number y) { return hn::Le(x.v, y.v); }
  friend HWY_INLINE auto operator>=(Number x, Number y) { return hn::Ge(x.v, y.v); }
  friend HWY_INLINE Number select(hn::Mask<D> condition, Number x, Number y) {
    return Number(hn::IfThenElse(condition, x.v, y.v));
  }
  friend HWY_INLINE Number fused(Number x, Number y, Number z) { return Number(hn::MulAdd(x.v, y.v, z.v)); }
  friend HWY_INLINE Number tanh_of(Number x) { return Number(hn::Tanh(D(), x.v)); }
  friend HWY_INLINE Number sigmoid(Number x) { return Number(lanes::sigmoid(x.v, T())); }
};

#include "kernels/element/formulas-inl.h"
// The driver needs the formulas above.
#include "kernels/element/driver-inl.h"

}  // namespace

#undef SWITCHYARD_DEFINE
#define SWITCHYARD_DEFINE(name, formula, way, operands, results)                     \
  void name##_simd(const Elements& elements, std::int64_t begin, std::int64_t end) { \
    run_formula<way, formula, operands>(elements, begin, end);                       \
  }
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_DEFINE)

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

#define SWITCHYARD_EXPORT(name, ...) \
  SWITCHYARD_SIMD_EXPORT(name, (const Elements& elements, I begin, I end), (elements, begin, end))
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_EXPORT)

}  // namespace switchyard::cpu
#endif
