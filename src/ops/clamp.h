#pragma once

#include "autograd/op.h"

namespace switchyard {

// Clamps x to [-bound, bound], element by element. The gradient is zero beyond the bound. x must not be a
// partial sum (CHECK).
Array clamp(Context& context, const Array& x, float bound);

}  // namespace switchyard
