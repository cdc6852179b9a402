// The model that `train` and `generate` measure where no other is named.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace switchyard::bench {

// The config of `settings` (a command line's), on top of a run in bfloat16 on synthetic tokens, and of a
// mixtral of 140 M parameters where they name no other model. Error(usage) naming the case for other data.
Config model_run_config(const std::string& case_name, const std::vector<std::string>& settings);

// What a result calls its model.
std::string model_label(const Config& config);

}  // namespace switchyard::bench
