// The gate of an output for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/pointwise/cpu/sigmoid_gate.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <cmath>

#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/sigmoid_lanes-inl.h"
#include "kernels/pointwise/sigmoid_gate_problem.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET != HWY_SCALAR  // of which nothing is called
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lanes::D;
using lanes::kStep;
using lanes::load_part;
using lanes::store_part;
using lanes::V;

// The logistic function of a row's gates.
template <typename T>
class RowGates {
 public:
  RowGates(const SigmoidGateProblem& p, std::int64_t row)
      : gates_(static_cast<const T*>(p.gate) + (p.one_a_row ? row : row * p.columns)), one_(p.one_a_row) {
    if (one_) same_ = hn::Set(D(), 1 / (1 + std::exp(-static_cast<float>(*gates_))));
  }
  HWY_INLINE V at(std::int64_t column, std::int64_t left) const {
    return one_ ? same_ : lanes::sigmoid(load_part(gates_ + column, left), T());
  }

 private:
  const T* gates_;
  bool one_;
  V same_ = hn::Zero(D());
};

template <typename T>
void forward(const SigmoidGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const RowGates<T> gates(p, row);
    const T* const x = static_cast<const T*>(p.x) + row * p.columns;
    T* const out = static_cast<T*>(p.out) + row * p.columns;
    for (std::int64_t j = 0; j < p.columns; j += kStep) {
      const std::int64_t left = p.columns - j;
      store_part(hn::Mul(load_part(x + j, left), gates.at(j, left)), out + j, left);
    }
  }
}

template <typename T>
void backward(const SigmoidGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  const V one = hn::Set(D(), 1.0f);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const RowGates<T> gates(p, row);
    const T* const x = static_cast<const T*>(p.x) + row * p.columns;
    const T* const dout = static_cast<const T*>(p.dout) + row * p.columns;
    T* const dx = static_cast<T*>(p.dx) + row * p.columns;
    T* const dgate = static_cast<T*>(p.dgate) + (p.one_a_row ? row : row * p.columns);
    V sum = hn::Zero(D());
    for (std::int64_t j = 0; j < p.columns; j += kStep) {
      const std::int64_t left = p.columns - j;
      const V g = gates.at(j, left), d = load_part(dout + j, left);
      const V slope = hn::Mul(hn::Mul(d, load_part(x + j, left)), hn::Mul(g, hn::Sub(one, g)));
      store_part(hn::Mul(d, g), dx + j, left);
      if (!p.one_a_row) store_part(slope, dgate + j, left);
      sum = hn::Add(sum, slope);  // lanes past the end are zero, as their dout
    }
    if (p.one_a_row) *dgate = static_cast<T>(hn::GetLane(hn::SumOfLanes(D(), sum)));
  }
}

}  // namespace

void sigmoid_gate_simd(const SigmoidGateProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? forward<float>(p, begin, end) : forward<bfloat16>(p, begin, end);
}
void sigmoid_gate_backward_simd(const SigmoidGateProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? backward<float>(p, begin, end) : backward<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(sigmoid_gate, (const SigmoidGateProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(sigmoid_gate_backward, (const SigmoidGateProblem& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
