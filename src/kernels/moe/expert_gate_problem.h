// The rows of one group behind expert_gate.h, for the reference implementation and the vector kernels.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/moe/expert_gate.h"

namespace switchyard {

struct ExpertGateProblem {
  DType dtype = DType::f32;
  std::int64_t columns = 0;
  const void *gate = nullptr, *up = nullptr;            // of all rows
  const void *gate_bias = nullptr, *up_bias = nullptr;  // of the rows' group; null: none
  const float* row_weights = nullptr;
  GateForm form;
  void* hidden = nullptr;  // forward
  const void* dhidden = nullptr;
  void *dgate = nullptr, *dup = nullptr;
  float* drow_weights = nullptr;
};
using ExpertGateKernel = void(const ExpertGateProblem& problem, std::int64_t row_begin, std::int64_t row_end);

namespace ref {
// add_group_rows: x is `gate`, the bias `gate_bias`, out `hidden`.
ExpertGateKernel expert_gate, expert_gate_backward, add_group_rows;
}  // namespace ref
namespace cpu {
ExpertGateKernel expert_gate_avx2, expert_gate_backward_avx2, add_group_rows_avx2;
ExpertGateKernel expert_gate_avx512, expert_gate_backward_avx512, add_group_rows_avx512;
}  // namespace cpu

}  // namespace switchyard
