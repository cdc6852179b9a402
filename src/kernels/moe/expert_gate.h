// The gated activation of experts that have biases or clamp their gates, and the biases of their outputs.
//
// Rows are sorted by group, one group an expert: group_sizes [G] i32 says how many rows each has; undefined,
// all have as many. Elements are f32 or bf16, of one dtype for all but weights and gradients said to be f32;
// arithmetic is fp32, rounded once. Views have no gaps. Bit-identical for any number of threads.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// GateClamp says what a limit cuts, with u = clamp(up', -limit, limit).
enum class GateClamp {
  gpt_oss,  // (u + 1) · g · sigmoid(alpha · g), g = min(gate', limit) (the model card of gpt-oss, 2025)
  before,   // u · silu(min(gate', limit)) (DeepSeek-V4, 2026)
  after,    // u · min(silu(gate'), limit) (Step 3.5, 2026)
};

// gate' = gate + gate_bias, up' = up + up_bias. Without a limit silu(gate') · up', as swiglu (elementwise.h).
struct GateForm {
  float limit = 0;  // 0: none
  float alpha = 1;  // of gpt_oss only
  // Row weights are factors of what the expert takes: of gate and up, whose products are linear in it, not of
  // hidden. Without biases and limit only.
  bool weighted_inputs = false;
  GateClamp clamp = GateClamp::gpt_oss;
};

struct ExpertGateArgs {
  TensorView gate, up;            // [rows, columns], or more dims, of which the last is the columns
  TensorView gate_bias, up_bias;  // [G, columns]; both undefined: none
  TensorView group_sizes;
  TensorView row_weights;  // [rows] f32, factors of the rows of hidden (GateForm); undefined: 1
  GateForm form;
  TensorView hidden;  // as gate
};
void expert_gate(ThreadPool& pool, const ExpertGateArgs& args);

// Gradients of expert_gate, 0 where a clamp cut. The gradients of the biases are sum_groups of dgate and dup.
struct ExpertGateBackwardArgs {
  ExpertGateArgs forward;   // hidden is not read
  TensorView dhidden;       // as gate
  TensorView dgate, dup;    // as gate
  TensorView drow_weights;  // [rows] f32, with row weights only
};
void expert_gate_backward(ThreadPool& pool, const ExpertGateBackwardArgs& args);

// out[g] = the sum of x[r] · row_weights[r] over the rows of group g, in the order of rows.
struct SumGroupsArgs {
  TensorView x;  // [rows, columns], or more dims
  TensorView group_sizes;
  TensorView row_weights;  // [rows] f32; undefined: 1
  TensorView out;          // [G, columns] f32
};
void sum_groups(ThreadPool& pool, const SumGroupsArgs& args);

// out[r] = x[r] + row_weights[r] · bias[g(r)].
struct AddGroupRowsArgs {
  TensorView x;     // [rows, columns], or more dims
  TensorView bias;  // [G, columns]
  TensorView group_sizes;
  TensorView row_weights;  // [rows] f32; undefined: 1
  TensorView out;          // as x; may be x
};
void add_group_rows(ThreadPool& pool, const AddGroupRowsArgs& args);

// Its gradient for row_weights: out[r] = dy[r] · bias[g(r)], a scalar product.
struct GroupRowProductsArgs {
  TensorView dy;    // [rows, columns], or more dims
  TensorView bias;  // [G, columns]
  TensorView group_sizes;
  TensorView out;  // [rows] f32
};
void group_row_products(ThreadPool& pool, const GroupRowProductsArgs& args);

}  // namespace switchyard
