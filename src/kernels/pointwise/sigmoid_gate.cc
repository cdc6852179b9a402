#include "kernels/pointwise/sigmoid_gate.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

SWITCHYARD_ELEMENT_KERNEL(kSigmoidGate, sigmoid_gate, 10);
SWITCHYARD_ELEMENT_KERNEL(kSigmoidGateBackward, sigmoid_gate_backward, 10);

// An x of one column has gates of rows, too.
bool is_of_rows(const TensorView& gate) {
  return gate.shape().back() == 1;
}

}  // namespace

void sigmoid_gate(ThreadPool& pool, const SigmoidGateArgs& args) {
  const auto& [x, gate, out] = args;
  ElementArgs elements{.in = {&x}, .out = {&out}};
  (is_of_rows(gate) ? elements.row_number : elements.in[1]) = &gate;
  run_elements(pool, kSigmoidGate, elements);
}

void sigmoid_gate_backward(ThreadPool& pool, const SigmoidGateBackwardArgs& args) {
  const auto& [x, gate, dout, dx, dgate] = args;
  ElementArgs elements{.in = {&x, nullptr, &dout}, .out = {&dx}};
  (is_of_rows(gate) ? elements.row_number : elements.in[1]) = &gate;
  (is_of_rows(gate) ? elements.sum : elements.out[1]) = &dgate;
  run_elements(pool, kSigmoidGateBackward, elements);
}

}  // namespace switchyard
