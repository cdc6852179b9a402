// Writes the config.json of our model, for the families that models/families/hub_tensors.h can read.
#pragma once

#include <nlohmann/json.hpp>

#include "config/config.h"

namespace switchyard {

// The config.json with which transformers computes what we compute; config_of_hub() of it is the same model.
// `dtype` is the dtype of most weights, "bfloat16" or "float32". Error(usage) that names the key, for a model
// that no family can express; hub_form() finds models that a family can express with other weights.
nlohmann::ordered_json config_to_hub(const Config& config, const std::string& dtype);

}  // namespace switchyard
