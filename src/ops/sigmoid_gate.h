#pragma once

#include "autograd/op.h"

namespace switchyard {

// x ⊙ sigmoid(gate). The gate has x's shape, or its last dim is 1: one number for x's whole last dim, which
// may then be split.
Array sigmoid_gate(Context& context, const Array& x, const Array& gate);

}  // namespace switchyard
