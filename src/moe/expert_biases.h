// The parts of an expert that only some models have: biases, a clamp of what is gated, and weights of what
// it takes.
#pragma once

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// Whose rows are which. Ragged rows [R,H] are sorted by expert, and `sizes` [G] i32 counts each expert's. In
// rows [G,...,H] the first dim is the experts', and `sizes` is undefined.
struct GroupedRows {
  Array sizes;
  Array weights;  // f32, a factor for each row; undefined: 1
};

// The activation of gate and up [R,H] or [G,...,H] with the biases [G,H] of their experts, where there are
// some, in the form that the config says (kernels/moe/expert_gate.h). Biases are in the layout of the rows'
// experts and columns.
Array expert_gate(Context& context, const MoeConfig& config, const Array& gate, const Array& up,
                  const Array& gate_bias, const Array& up_bias, const GroupedRows& rows);

// y [R,M] or [G,...,M] plus each row's weight times the bias [G,M] of its expert. Where y is a partial sum
// over the axes `partial`, the first rank along them adds the bias, and the others add nothing.
Array add_expert_bias(Context& context, const Array& y, const Array& bias, const GroupedRows& rows,
                      const Axes& partial);

}  // namespace switchyard
