// What sigmoid_gate's implementations are given (internal to kernels/).
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

struct SigmoidGateProblem {
  DType dtype = DType::f32;
  std::int64_t columns = 0;
  bool one_a_row = false;  // the gate has one column
  const void *x = nullptr, *gate = nullptr;
  void* out = nullptr;
  const void* dout = nullptr;
  void *dx = nullptr, *dgate = nullptr;
};
using SigmoidGateKernel = void(const SigmoidGateProblem& problem, std::int64_t row_begin,
                               std::int64_t row_end);

namespace ref {
SigmoidGateKernel sigmoid_gate, sigmoid_gate_backward;
}  // namespace ref
namespace cpu {
SigmoidGateKernel sigmoid_gate_avx2, sigmoid_gate_backward_avx2;
SigmoidGateKernel sigmoid_gate_avx512, sigmoid_gate_backward_avx512;
}  // namespace cpu

}  // namespace switchyard
