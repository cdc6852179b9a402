// The GPU's implementation of random_values. Internal to kernels/pointwise.
#pragma once

#include "kernels/pointwise/random_values.h"

namespace switchyard::gpu {

void random_values(const RandomValuesArgs& args);

}  // namespace switchyard::gpu
