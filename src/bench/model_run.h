// The model that `train` and `generate` measure when the call names no other.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace switchyard::bench {

// The config of `settings` (a command line) over defaults: bfloat16, synthetic tokens, and a mixtral of 140 M
// parameters where `settings` name no model. Error(usage) that names the case for other data.
Config model_run_config(const std::string& case_name, const std::vector<std::string>& settings);

// The name of the model in a result.
std::string model_label(const Config& config);

}  // namespace switchyard::bench
