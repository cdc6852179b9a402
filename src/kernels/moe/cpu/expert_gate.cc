// The gated activation with biases and a clamp, and biases of rows, for AVX2 and AVX-512.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/moe/cpu/expert_gate.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include "hwy/highway.h"
#include "kernels/cpu/elementwise_lanes-inl.h"
#include "kernels/cpu/sigmoid_lanes-inl.h"
#include "kernels/moe/expert_gate_problem.h"
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
using lanes::sigmoid;
using lanes::store_part;
using lanes::V;
using Mask = hn::Mask<D>;

enum class Form { plain, clamped, clamped_after, weighted_inputs };

// The operands of a problem, and one vector of them.
template <typename T, Form kForm>
class Gate {
  static constexpr bool kClamped = kForm == Form::clamped || kForm == Form::clamped_after;

 public:
  explicit Gate(const ExpertGateProblem& p)
      : limit_(hn::Set(D(), p.form.limit)),
        least_(hn::Set(D(), -p.form.limit)),
        alpha_(hn::Set(D(), kClamped && p.form.clamp == GateClamp::gpt_oss ? p.form.alpha : 1.0f)),
        added_(hn::Set(D(), p.form.clamp == GateClamp::gpt_oss ? 1.0f : 0.0f)),
        gate_(static_cast<const T*>(p.gate)),
        up_(static_cast<const T*>(p.up)),
        gate_bias_(static_cast<const T*>(p.gate_bias)),
        up_bias_(static_cast<const T*>(p.up_bias)),
        columns_(p.columns) {}

  // Reads the elements from `column` of `row` on: gate and up after the row's weight (of weighted inputs),
  // bias and clamp, up with its one (gpt-oss), and the gate's logistic function and silu.
  HWY_INLINE void read(std::int64_t row, std::int64_t column, V weight) {
    const std::int64_t left = columns_ - column;
    gate = load_part(gate_ + row * columns_ + column, left);
    up = load_part(up_ + row * columns_ + column, left);
    if constexpr (kForm == Form::weighted_inputs) {
      raw_gate = gate;
      raw_up = up;
      gate = hn::Mul(gate, weight);
      up = hn::Mul(up, weight);
    }
    if (gate_bias_ != nullptr) {
      gate = hn::Add(gate, load_part(gate_bias_ + column, left));
      up = hn::Add(up, load_part(up_bias_ + column, left));
    }
    if constexpr (kClamped) {
      // Comparisons with NaN are false, so that a NaN stays one.
      const Mask above = hn::Gt(up, limit_), below = hn::Lt(up, least_);
      up_cut = hn::Or(above, below);
      up = hn::Add(hn::IfThenElse(above, limit_, hn::IfThenElse(below, least_, up)), added_);
    }
    if constexpr (kForm == Form::clamped) {
      gate_cut = hn::Gt(gate, limit_);
      gate = hn::IfThenElse(gate_cut, limit_, gate);
    }
    logistic = sigmoid(hn::Mul(alpha_, gate), T());
    silu = hn::Mul(gate, logistic);
    if constexpr (kForm == Form::clamped_after) {
      gate_cut = hn::Gt(silu, limit_);
      silu = hn::IfThenElse(gate_cut, limit_, silu);
    }
  }
  V alpha() const { return alpha_; }

  V gate, up, logistic, silu;
  V raw_gate, raw_up;     // as stored; of weighted inputs only
  Mask gate_cut, up_cut;  // where a clamp cut; with one only

 private:
  V limit_, least_, alpha_, added_;
  const T *gate_, *up_, *gate_bias_, *up_bias_;
  std::int64_t columns_;
};

template <typename T, Form kForm>
void forward(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  Gate<T, kForm> x(p);
  T* const hidden = static_cast<T*>(p.hidden);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const V w = hn::Set(D(), p.row_weights == nullptr ? 1.0f : p.row_weights[row]);
    for (std::int64_t j = 0; j < p.columns; j += kStep) {
      x.read(row, j, w);
      const V gated = hn::Mul(x.silu, x.up);
      store_part(kForm == Form::weighted_inputs ? gated : hn::Mul(gated, w), hidden + row * p.columns + j,
                 p.columns - j);
    }
  }
}

template <typename T, Form kForm>
void backward(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  Gate<T, kForm> x(p);
  const V one = hn::Set(D(), 1.0f), zero = hn::Zero(D());
  const T* const dhidden = static_cast<const T*>(p.dhidden);
  T *const dgate = static_cast<T*>(p.dgate), *const dup = static_cast<T*>(p.dup);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const V w = hn::Set(D(), p.row_weights == nullptr ? 1.0f : p.row_weights[row]);
    V dw = zero;
    for (std::int64_t j = 0; j < p.columns; j += kStep) {
      const std::int64_t at = row * p.columns + j, left = p.columns - j;
      x.read(row, j, w);
      const V d = load_part(dhidden + at, left), silu = x.silu;
      const V weighted = kForm == Form::weighted_inputs ? d : hn::Mul(d, w);
      if constexpr (kForm != Form::weighted_inputs) dw = hn::MulAdd(hn::Mul(d, silu), x.up, dw);
      const V slope =
          hn::Mul(x.logistic, hn::MulAdd(hn::Mul(x.alpha(), x.gate), hn::Sub(one, x.logistic), one));
      V to_up = hn::Mul(weighted, silu), to_gate = hn::Mul(hn::Mul(weighted, x.up), slope);
      if constexpr (kForm == Form::clamped || kForm == Form::clamped_after) {
        to_up = hn::IfThenElse(x.up_cut, zero, to_up);
        to_gate = hn::IfThenElse(x.gate_cut, zero, to_gate);
      } else if constexpr (kForm == Form::weighted_inputs) {
        dw = hn::MulAdd(to_gate, x.raw_gate, hn::MulAdd(to_up, x.raw_up, dw));
        to_up = hn::Mul(to_up, w);
        to_gate = hn::Mul(to_gate, w);
      }
      store_part(to_up, dup + at, left);
      store_part(to_gate, dgate + at, left);
    }
    if (p.drow_weights != nullptr) p.drow_weights[row] = hn::GetLane(hn::SumOfLanes(D(), dw));
  }
}

// Rows of gate, plus a bias times the row's weight, into hidden.
template <typename T>
void add_bias(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  const T *const x = static_cast<const T*>(p.gate), *const bias = static_cast<const T*>(p.gate_bias);
  T* const out = static_cast<T*>(p.hidden);
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const V w = hn::Set(D(), p.row_weights == nullptr ? 1.0f : p.row_weights[row]);
    for (std::int64_t j = 0; j < p.columns; j += kStep) {
      const std::int64_t at = row * p.columns + j, left = p.columns - j;
      store_part(hn::MulAdd(w, load_part(bias + j, left), load_part(x + at, left)), out + at, left);
    }
  }
}

template <typename T, typename Run>
void with_form_of(const ExpertGateProblem& p, const Run& run) {
  if (p.form.limit != 0 && p.form.clamp == GateClamp::after)
    run.template operator()<T, Form::clamped_after>();
  else if (p.form.limit != 0)
    run.template operator()<T, Form::clamped>();
  else if (p.form.weighted_inputs)
    run.template operator()<T, Form::weighted_inputs>();
  else
    run.template operator()<T, Form::plain>();
}

template <typename Run>
void with_form(const ExpertGateProblem& p, const Run& run) {
  p.dtype == DType::f32 ? with_form_of<float>(p, run) : with_form_of<bfloat16>(p, run);
}

}  // namespace

void expert_gate_simd(const ExpertGateProblem& p, std::int64_t begin, std::int64_t end) {
  with_form(p, [&]<typename T, Form kForm>() { forward<T, kForm>(p, begin, end); });
}

void expert_gate_backward_simd(const ExpertGateProblem& p, std::int64_t begin, std::int64_t end) {
  with_form(p, [&]<typename T, Form kForm>() { backward<T, kForm>(p, begin, end); });
}

void add_group_rows_simd(const ExpertGateProblem& p, std::int64_t begin, std::int64_t end) {
  p.dtype == DType::f32 ? add_bias<float>(p, begin, end) : add_bias<bfloat16>(p, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {

using I = std::int64_t;

SWITCHYARD_SIMD_EXPORT(expert_gate, (const ExpertGateProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(expert_gate_backward, (const ExpertGateProblem& p, I begin, I end), (p, begin, end))
SWITCHYARD_SIMD_EXPORT(add_group_rows, (const ExpertGateProblem& p, I begin, I end), (p, begin, end))

}  // namespace switchyard::cpu
#endif
