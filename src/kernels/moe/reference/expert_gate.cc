// The reference implementation of the gated activation with biases and a clamp.
#include <algorithm>
#include <cmath>

#include "kernels/moe/expert_gate_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

struct Gated {
  float silu, up;               // hidden's factors
  bool gate_passes, up_passes;  // whether a gradient reaches what was clamped
  float slope;                  // of silu
};

// `w`: factor of gate and up.
Gated gated(const ExpertGateProblem& p, std::int64_t i, float w) {
  const std::int64_t column = i % p.columns;
  float g = at(p.gate, p.dtype, i) * w, u = at(p.up, p.dtype, i) * w;
  if (p.gate_bias != nullptr) {
    g += at(p.gate_bias, p.dtype, column);
    u += at(p.up_bias, p.dtype, column);
  }
  const float limit = p.form.limit;
  const bool gpt_oss = limit != 0 && p.form.clamp == GateClamp::gpt_oss,
             after = limit != 0 && p.form.clamp == GateClamp::after;
  const float alpha = gpt_oss ? p.form.alpha : 1.0f;
  const float cut = limit == 0 || after ? g : std::min(g, limit);
  const float sigmoid = 1.0f / (1.0f + std::exp(-alpha * cut)), silu = cut * sigmoid;
  const float slope = sigmoid * (1.0f + alpha * cut * (1.0f - sigmoid));
  if (limit == 0) return {silu, u, true, true, slope};
  return {after ? std::min(silu, limit) : silu, std::clamp(u, -limit, limit) + (gpt_oss ? 1.0f : 0.0f),
          (after ? silu : g) <= limit, u >= -limit && u <= limit, slope};
}

// A row's factors of gate and up, and of hidden.
struct Factors {
  float before, after;
};

Factors factors_of(const ExpertGateProblem& p, std::int64_t row) {
  const float w = p.row_weights == nullptr ? 1.0f : p.row_weights[row];
  return p.form.weighted_inputs ? Factors{w, 1.0f} : Factors{1.0f, w};
}

}  // namespace

void expert_gate(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const auto [before, w] = factors_of(p, row);
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const Gated x = gated(p, i, before);
      put(p.hidden, p.dtype, i, x.silu * x.up * w);
    }
  }
}

void expert_gate_backward(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const auto [before, w] = factors_of(p, row);
    float dw = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const Gated x = gated(p, i, before);
      const float dh = at(p.dhidden, p.dtype, i);
      const float dup = x.up_passes ? dh * w * x.silu : 0.0f,
                  dgate = x.gate_passes ? dh * w * x.up * x.slope : 0.0f;
      dw += p.form.weighted_inputs ? dgate * at(p.gate, p.dtype, i) + dup * at(p.up, p.dtype, i)
                                   : dh * x.silu * x.up;
      put(p.dup, p.dtype, i, dup * before);
      put(p.dgate, p.dtype, i, dgate * before);
    }
    if (p.drow_weights != nullptr) p.drow_weights[row] = dw;
  }
}

void add_group_rows(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float w = p.row_weights == nullptr ? 1.0f : p.row_weights[row];
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i)
      put(p.hidden, p.dtype, i, at(p.gate, p.dtype, i) + w * at(p.gate_bias, p.dtype, i % p.columns));
  }
}

}  // namespace switchyard::ref
