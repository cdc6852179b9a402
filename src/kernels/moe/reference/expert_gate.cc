// The reference implementation of the gated activation with biases and a clamp.
#include <algorithm>
#include <cmath>

#include "kernels/moe/expert_gate_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

struct Gated {
  float gate, up;               // after bias and clamp
  bool gate_passes, up_passes;  // whether a gradient reaches what was clamped
  float sigmoid;
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
  if (limit == 0) return {g, u, true, true, 1.0f / (1.0f + std::exp(-g))};
  const float clamped = std::min(g, limit);
  return {clamped, std::clamp(u, -limit, limit) + 1.0f, g <= limit, u >= -limit && u <= limit,
          1.0f / (1.0f + std::exp(-p.form.alpha * clamped))};
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
      put(p.hidden, p.dtype, i, x.gate * x.sigmoid * x.up * w);
    }
  }
}

void expert_gate_backward(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  const float alpha = p.form.limit == 0 ? 1.0f : p.form.alpha;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const auto [before, w] = factors_of(p, row);
    float dw = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const Gated x = gated(p, i, before);
      const float dh = at(p.dhidden, p.dtype, i), silu = x.gate * x.sigmoid;
      const float slope = x.sigmoid * (1.0f + alpha * x.gate * (1.0f - x.sigmoid));
      const float dup = x.up_passes ? dh * w * silu : 0.0f,
                  dgate = x.gate_passes ? dh * w * x.up * slope : 0.0f;
      dw += p.form.weighted_inputs ? dgate * at(p.gate, p.dtype, i) + dup * at(p.up, p.dtype, i)
                                   : dh * silu * x.up;
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
