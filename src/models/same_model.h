// The config keys that make a model, out of all the keys of a run or of a Hugging Face config.json.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "config/config.h"
#include "models/model_config.h"

namespace switchyard {

// The keys that make a model, of stored resolved values: those that are not at their default. Error(usage)
// naming `path` for anything that is not such an object.
std::map<std::string, nlohmann::json> model_keys_of_stored(const nlohmann::json& resolved,
                                                           const std::string& path);

// The model of stored resolved values (a manifest's "config", summary.json's): its keys alone, so that what a
// run says of meshes, data and folders is neither needed nor checked. Computes in float32 and keeps weights
// in it. Error(usage) as above.
Config config_of_stored(const nlohmann::json& resolved, const std::string& path);

// The config of a config.json, with so many prediction layers (predictions_in() of models/families/family.h),
// as a run with `compat` computes it. Error(usage) for a model that is not ours to run.
Config config_of_hub(const nlohmann::json& hub_config, std::int64_t predictions = 0,
                     const std::string& compat = "none");

}  // namespace switchyard
