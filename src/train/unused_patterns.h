// Patterns of weights' names that name none: a slip of the pen trains, freezes or
// decays other weights than meant.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"

namespace switchyard {

// A line for each pattern of trainable_parameters_mask, adamw_mask and weight_decay_exclude that none of the
// weights has in its name.
std::vector<std::string> unused_patterns(const Config& config, const std::vector<ParameterSpec>& specs);

}  // namespace switchyard
