// Initial weights: what a run starts from where load_parameters_path names a folder.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"

namespace switchyard {

// Blocks of the weights in load_parameters_path, in the parameters' dtype: of a Hugging Face folder, or of
// one of our checkpoints (of a run's folder: the newest). Null without the key, for a random start.
// Error(usage) for what does not fit the model; what is left out on purpose is told in `notes`.
Parameters::FillBlock initial_weights(const Config& config, const ModelConfig& model,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes);

}  // namespace switchyard
