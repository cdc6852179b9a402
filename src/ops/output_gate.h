#pragma once

#include "autograd/op.h"
#include "kernels/pointwise/output_gate.h"

namespace switchyard {

// x ⊙ curve(gate). The gate has x's shape, or its last dim is 1: one number for x's whole last dim, which
// may then be split.
Array output_gate(Context& context, const Array& x, const Array& gate, GateCurve curve = GateCurve::sigmoid);

}  // namespace switchyard
