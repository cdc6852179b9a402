#include "kernels/pointwise/output_gate.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

SWITCHYARD_ELEMENT_KERNEL(kSigmoidGate, sigmoid_gate, 10);
SWITCHYARD_ELEMENT_KERNEL(kSigmoidGateBackward, sigmoid_gate_backward, 10);
SWITCHYARD_PORTABLE_KERNEL(kSoftplusGate, softplus_gate, 20);
SWITCHYARD_PORTABLE_KERNEL(kSoftplusGateBackward, softplus_gate_backward, 30);

// An x of one column has gates of rows, too.
bool is_of_rows(const TensorView& gate) {
  return gate.shape().back() == 1;
}

}  // namespace

void output_gate(ThreadPool& pool, const OutputGateArgs& args) {
  const auto& [x, gate, out, curve] = args;
  ElementArgs elements{.in = {&x}, .out = {&out}};
  (is_of_rows(gate) ? elements.row_number : elements.in[1]) = &gate;
  run_elements(pool, curve == GateCurve::sigmoid ? kSigmoidGate : kSoftplusGate, elements);
}

void output_gate_backward(ThreadPool& pool, const OutputGateBackwardArgs& args) {
  const auto& [x, gate, dout, dx, dgate, curve] = args;
  ElementArgs elements{.in = {&x, nullptr, &dout}, .out = {&dx}};
  (is_of_rows(gate) ? elements.row_number : elements.in[1]) = &gate;
  (is_of_rows(gate) ? elements.sum : elements.out[1]) = &dgate;
  run_elements(pool, curve == GateCurve::sigmoid ? kSigmoidGateBackward : kSoftplusGateBackward, elements);
}

}  // namespace switchyard
