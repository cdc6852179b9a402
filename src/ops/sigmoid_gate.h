#pragma once

#include "autograd/op.h"

namespace switchyard {

// x ⊙ sigmoid(gate). The gate is as x, or its last dim is 1: one number for all of x's. x's last dim may be
// split then.
Array sigmoid_gate(Context& context, const Array& x, const Array& gate);

}  // namespace switchyard
