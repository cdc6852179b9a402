// The scalar truth of the gated activation with biases and a clamp.
#include <algorithm>
#include <cmath>

#include "kernels/expert_gate_problem.h"
#include "kernels/ref/elementwise_access.h"

namespace switchyard::ref {
namespace {

struct Gated {
  float gate, up;               // after bias and clamp
  bool gate_passes, up_passes;  // whether a gradient reaches what was clamped
  float sigmoid;
};

Gated gated(const ExpertGateProblem& p, std::int64_t i) {
  const std::int64_t column = i % p.columns;
  float g = at(p.gate, p.dtype, i), u = at(p.up, p.dtype, i);
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

}  // namespace

void expert_gate(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float w = p.row_weights == nullptr ? 1.0f : p.row_weights[row];
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const Gated x = gated(p, i);
      put(p.hidden, p.dtype, i, x.gate * x.sigmoid * x.up * w);
    }
  }
}

void expert_gate_backward(const ExpertGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  const float alpha = p.form.limit == 0 ? 1.0f : p.form.alpha;
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float w = p.row_weights == nullptr ? 1.0f : p.row_weights[row];
    float dw = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const Gated x = gated(p, i);
      const float dh = at(p.dhidden, p.dtype, i), silu = x.gate * x.sigmoid;
      dw += dh * silu * x.up;
      const float slope = x.sigmoid * (1.0f + alpha * x.gate * (1.0f - x.sigmoid));
      put(p.dup, p.dtype, i, x.up_passes ? dh * w * silu : 0.0f);
      put(p.dgate, p.dtype, i, x.gate_passes ? dh * w * x.up * slope : 0.0f);
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
