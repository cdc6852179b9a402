// Initial weights: those that a run starts from when load_parameters_path names a folder.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"

namespace switchyard {

// The use that weights are loaded for.
enum class WeightUse {
  train,  // they will change
  run,    // they do not change, or are copied to a GPU: where possible, a checkpoint's are used directly from
          // its files
};

struct ModelFamily;

// The model that an adapter is for, as its files call its weights.
struct AdapterBase {
  const ModelFamily* family;
  nlohmann::json hub_config;  // config.json, of the folder or as the model would be written
};
// Returns the base at load_parameters_path, or else the family that the model is written as. Error(usage)
// when there is neither.
AdapterBase adapter_base(const Config& config, const ModelConfig& model);

// Reads blocks of the weights in load_parameters_path from a Hugging Face folder, a GGUF file, or a
// checkpoint (the newest of a run's folder): in the parameters' dtype, or a checkpoint's floats in its own.
// Null without the key: a random start. For a packed parameter it returns the checkpoint's blocks, or else
// dense float32 values. Error(usage) for weights that do not fit the model; `notes` names the tensors that
// are left out on purpose.
Parameters::FillBlock initial_weights(const Config& config, const ModelConfig& model,
                                      const std::vector<ParameterSpec>& specs,
                                      std::vector<std::string>* notes, WeightUse use);

// parameter_specs(model) in the bits that the key weight_format names, or that the checkpoint in
// load_parameters_path has; the key is then set to them. Error(usage) when the two differ.
std::vector<ParameterSpec> specs_to_run(Config& config, const ModelConfig& model,
                                        std::vector<std::string>* notes);
// The specs for training, where weight_format packs only frozen parameters. Error(usage) when the checkpoint
// has packed weights that would be trained.
std::vector<ParameterSpec> specs_to_train(const Config& config, const ModelConfig& model,
                                          std::vector<std::string>* notes);

// `specs` for weight_format=stored: a parameter that load_parameters_path holds in
// blocks of a packed type is packed, and its fill is those blocks, bit for bit.
// `notes` says how many are packed, and how many are dense because `mesh` would cut
// their blocks or because gate and up projection of a layer's experts differ in type.
std::vector<ParameterSpec> specs_as_stored(const Config& config, const Mesh& mesh, const ModelConfig& model,
                                           std::vector<ParameterSpec> specs, std::vector<std::string>* notes);

// The packed type that a parameter is stored in; none: dense.
using StoredType = std::function<std::optional<DType>(const ParameterSpec& spec)>;
// Does what specs_as_stored() does for weights that are not on this machine: `stored` tells their types, and
// `where` ends the notes.
std::vector<ParameterSpec> specs_stored_as(const Config& config, const Mesh& mesh, const StoredType& stored,
                                           const std::string& where, std::vector<ParameterSpec> specs,
                                           std::vector<std::string>* notes);

}  // namespace switchyard
