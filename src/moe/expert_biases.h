// The parts of an expert that only some models have: biases,
// clamped gates, and weights on the experts' inputs.
#pragma once

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// The experts that rows belong to. Ragged rows [R,H] are sorted by expert, and `sizes` [G] i32 counts each
// expert's rows. In rows [G,...,H] the first dim is the experts, and `sizes` is undefined.
struct GroupedRows {
  Array sizes;
  Array weights;  // f32, one factor for each row; undefined: 1
};

// The activation of gate and up [R,H] or [G,...,H] with their experts' biases
// [G,H], where defined, in that form. The biases are laid out as the experts and columns of the rows.
Array expert_gate(Context& context, const GateForm& form, const Array& gate, const Array& up,
                  const Array& gate_bias, const Array& up_bias, const GroupedRows& rows);

// y [R,M] or [G,...,M] plus each row's weight times the bias [G,M] of its expert. Where y is a partial sum
// over the axes `partial`, only the first rank along them adds the bias.
Array add_expert_bias(Context& context, const Array& y, const Array& bias, const GroupedRows& rows,
                      const Axes& partial);

}  // namespace switchyard
