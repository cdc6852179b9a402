#pragma once

#include "autograd/op.h"

namespace switchyard {

// x in [-bound, bound], else the nearer end, element by element. No gradient beyond the bound. x is no
// partial sum (CHECK).
Array clamp(Context& context, const Array& x, float bound);

}  // namespace switchyard
