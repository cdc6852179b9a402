// The parts of an expert that only some models have: biases, and a clamp of what is gated.
#pragma once

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// Which rows are whose: of ragged rows `sizes` [G] i32; undefined where a dim before the last but some is the
// experts' (rows [G, ..., H]), which then have as many rows each.
struct GroupedRows {
  Array sizes;
  Array weights;  // f32, one a row: factors; undefined: 1
};

// The activation of gate and up [R,H] or [G,...,H] with the biases [G,H] of their experts, where there are
// some, in the form that the config says (kernels/expert_gate.h). Biases are in the layout of the rows'
// experts and columns.
Array expert_gate(Context& context, const MoeConfig& config, const Array& gate, const Array& up,
                  const Array& gate_bias, const Array& up_bias, const GroupedRows& rows);

// y [R,M] or [G,...,M] plus each row's weight times the bias [G,M] of its expert. Of rows that are partial
// sums over `partial` only the first of those ranks adds it.
Array add_expert_bias(Context& context, const Array& y, const Array& bias, const GroupedRows& rows,
                      const Axes& partial);

}  // namespace switchyard
