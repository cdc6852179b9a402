// The check that stored weights are those of the model that a config describes.
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

// Models are equal where they compute the same: Error(usage) that names the key in which `stored` computes
// another one than `own`, the model of a run's config. `made_with` begins the line, `advice` ends it.
void check_same_model(const Config& config, const ModelConfig& own, const Config& stored,
                      const std::string& made_with, const std::string& advice);

// The use that a checkpoint is wanted for.
enum class Fit {
  weights,  // a start: types may differ, optimizer state is not needed
  state,    // going on: everything must be the same
};
// Error(usage) naming the key where a checkpoint's model or optimizer is not the config's, or else the tensor
// of `needed` that is missing or different.
void check_fits(const Config& config, const CheckpointFolder& checkpoint,
                const std::vector<StoredTensor>& needed, Fit fit);

// Calls each(key, value of the checkpoint, value of this run) for the active keys that `chosen` holds for and
// whose values differ; a key that the checkpoint does not have is passed over.
void for_other_values(const Config& config, const CheckpointFolder& checkpoint,
                      const std::function<bool(const KeyDeclaration& key)>& chosen,
                      const std::function<void(const std::string& key, const std::string& stored,
                                               const std::string& own)>& each);

}  // namespace switchyard
