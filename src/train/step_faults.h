// Faults that tests ask for with SWITCHYARD_FAULT (parallel/comm/fault.h), in a training step.
#pragma once

#include "models/parameters.h"

namespace switchyard {

// Writes a number to a tensor [1] of any device.
void put_number(const TensorView& to, double value);
// Makes the first element of the first gradient NaN.
void break_a_gradient(const Parameters& parameters);
// Flips a bit of the first weight.
void flip_a_bit(const Parameters& parameters);

}  // namespace switchyard
