// The scalar truth of the gate of an output.
#include <cmath>

#include "kernels/pointwise/reference/elementwise_access.h"
#include "kernels/pointwise/sigmoid_gate_problem.h"

namespace switchyard::ref {

void sigmoid_gate(const SigmoidGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t i = row_begin * p.columns; i < row_end * p.columns; ++i) {
    const float gate = at(p.gate, p.dtype, p.one_a_row ? i / p.columns : i);
    put(p.out, p.dtype, i, at(p.x, p.dtype, i) / (1 + std::exp(-gate)));
  }
}

void sigmoid_gate_backward(const SigmoidGateProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    double sum = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const float gate = at(p.gate, p.dtype, p.one_a_row ? row : i), sigmoid = 1 / (1 + std::exp(-gate));
      const float dout = at(p.dout, p.dtype, i), slope = dout * at(p.x, p.dtype, i) * sigmoid * (1 - sigmoid);
      put(p.dx, p.dtype, i, dout * sigmoid);
      if (!p.one_a_row) put(p.dgate, p.dtype, i, slope);
      sum += static_cast<double>(slope);
    }
    if (p.one_a_row) put(p.dgate, p.dtype, row, static_cast<float>(sum));
  }
}

}  // namespace switchyard::ref
