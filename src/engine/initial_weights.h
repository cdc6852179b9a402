// Initial weights: what a run starts from where load_parameters_path names a folder.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"

namespace switchyard {

// What weights are loaded for.
enum class WeightUse {
  train,  // they will change
  run,    // they stay: a checkpoint's are used where they lie in its files, where that is possible
};

// Blocks of the weights in load_parameters_path, in the parameters' dtype: of a Hugging Face folder or a GGUF
// file, or of one of our checkpoints (of a run's folder: the newest). Null without the key, for a random
// start. Of a packed parameter its blocks where the checkpoint has them, or else dense values in float32.
// Error(usage) for what does not fit the model; what is left out on purpose is told in `notes`.
Parameters::FillBlock initial_weights(const Config& config, const ModelConfig& model,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes, WeightUse use);

// parameter_specs(model) in the bits that the key weight_format names, or as the checkpoint holds them that
// load_parameters_path names; the key then says so, too. Error(usage) where the two differ.
std::vector<ParameterSpec> specs_to_run(Config& config, const ModelConfig& model,
                                        std::vector<std::string>* notes);
// The same for training, where weight_format packs frozen parameters alone. Error(usage) where the checkpoint
// has packed weights that are to be trained.
std::vector<ParameterSpec> specs_to_train(const Config& config, const ModelConfig& model,
                                          std::vector<std::string>* notes);

// `specs` with those packed that load_parameters_path holds in blocks of a packed type, where
// weight_format=stored: their fill is those blocks, bit for bit. `notes` tells how many there are, and how
// many are dense since `mesh` would cut their blocks or since the gate and the up-projection of a layer's
// experts differ in type.
std::vector<ParameterSpec> specs_as_stored(const Config& config, const Mesh& mesh, const ModelConfig& model,
                                           std::vector<ParameterSpec> specs, std::vector<std::string>* notes);

}  // namespace switchyard
