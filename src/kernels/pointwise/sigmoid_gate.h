// x ⊙ sigmoid(gate): the gate of an attention's output, or one number a token of a shared expert.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = x · 1 / (1 + e^-gate), in float32, rounded once. Views have no gaps. f32 or bf16, all of one dtype.
struct SigmoidGateArgs {
  TensorView x;     // [rows, columns], or more dims, of which the last is columns
  TensorView gate;  // as x, or with one column: the same for all of a row
  TensorView out;   // as x; may be x
};
void sigmoid_gate(ThreadPool& pool, const SigmoidGateArgs& args);

struct SigmoidGateBackwardArgs {
  TensorView x, gate;  // as in SigmoidGateArgs
  TensorView dout;     // as x
  TensorView dx;       // as x
  TensorView dgate;    // as gate
};
void sigmoid_gate_backward(ThreadPool& pool, const SigmoidGateBackwardArgs& args);

}  // namespace switchyard
