// x ⊙ curve(gate): the gate of an attention's output, or one number a token of a shared expert.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

enum class GateCurve {
  sigmoid,   // 1 / (1 + e^-gate)
  softplus,  // ln(1 + e^gate)
};

// out = x · curve(gate), in float32, rounded once. Views have no gaps. f32 or bf16, all of one dtype.
struct OutputGateArgs {
  TensorView x;     // [rows, columns], or more dims, of which the last is columns
  TensorView gate;  // as x, or with one column: the same for all of a row
  TensorView out;   // as x; may be x
  GateCurve curve = GateCurve::sigmoid;
};
void output_gate(ThreadPool& pool, const OutputGateArgs& args);

struct OutputGateBackwardArgs {
  TensorView x, gate;  // as in OutputGateArgs
  TensorView dout;     // as x
  TensorView dx;       // as x
  TensorView dgate;    // as gate
  GateCurve curve = GateCurve::sigmoid;
};
void output_gate_backward(ThreadPool& pool, const OutputGateBackwardArgs& args);

}  // namespace switchyard
