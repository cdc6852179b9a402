// Checks that stored weights belong to the model that a config describes.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "config/config.h"
#include "models/model_config.h"

namespace switchyard {

// Two models are equal when they compute the same function. Error(usage) that names the key in which `stored`
// differs from `own`, the run's model. `made_with` begins the line, `advice` ends it.
void check_same_model(const Config& config, const ModelConfig& own, const Config& stored,
                      const std::string& made_with, const std::string& advice);

// The purpose for which a checkpoint is read.
enum class Fit {
  weights,  // start from its weights: types may differ, optimizer state is not needed
  state,    // continue training: everything must be the same
};
// Error(usage) that names the key where a checkpoint's model or optimizer differs from the config's, or the
// tensor of `needed` that is missing or different.
void check_fits(const Config& config, const CheckpointFolder& checkpoint,
                const std::vector<StoredTensor>& needed, Fit fit);

// Calls each(key, value in the checkpoint, value in this run) for active keys that `chosen` accepts and whose
// values differ. Keys that the checkpoint does not have are left out.
void for_other_values(const Config& config, const CheckpointFolder& checkpoint,
                      const std::function<bool(const KeyDeclaration& key)>& chosen,
                      const std::function<void(const std::string& key, const std::string& stored,
                                               const std::string& own)>& each);

}  // namespace switchyard
