// Looks for values that are not finite, for messages that say where they came from.
#pragma once

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// Counts the values of this rank's block of x, f32 or bf16, that are not finite. The host reads the block.
double count_not_finite(Context& context, const Array& x);

}  // namespace switchyard
