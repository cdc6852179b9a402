// Picks the config keys that define a model out of a run's stored keys or a Hugging Face config.json.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "models/model_config.h"

namespace switchyard {

// The model-defining keys among stored resolved values that are not at their defaults. Error(usage) that
// names `path` when `resolved` is not an object of resolved values.
std::map<std::string, nlohmann::json> model_keys_of_stored(const nlohmann::json& resolved,
                                                           const std::string& path);

// The model in stored resolved values (a manifest's "config", or that of summary.json). Only the model's keys
// are used, so a run's meshes, data and folders are neither needed nor checked. Weights and activations are
// float32. Error(usage) as above.
Config config_of_stored(const nlohmann::json& resolved, const std::string& path);

// The config for a Hugging Face config.json with `predictions` prediction layers (see predictions_in() in
// models/families/family.h), under `compat`. Error(usage) for a model that Switchyard cannot run.
Config config_of_hub(const nlohmann::json& hub_config, std::int64_t predictions = 0,
                     const std::string& compat = "none");

}  // namespace switchyard
