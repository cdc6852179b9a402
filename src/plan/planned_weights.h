// The weights that a plan is made for: those of load_parameters_path, or the published ones of a model.
#pragma once

#include <string>
#include <vector>

#include "engine/initial_weights.h"
#include "engine/model.h"

namespace switchyard {

// `specs` in the packed types that the publisher of model_name stores, which weight_format=stored means where
// load_parameters_path is empty: mxfp4 for the experts of gpt-oss, fp8 for the matrices of DeepSeek-V3 and
// its kin. Other models' are returned as they are. `notes`: as specs_as_stored().
std::vector<ParameterSpec> specs_as_published(const Config& config, const Mesh& mesh,
                                              std::vector<ParameterSpec> specs,
                                              std::vector<std::string>* notes);

// Opens the weights of load_parameters_path, if it is set. Error(usage) where the weights are missing,
// broken, or not the model's own. `notes` receives lines about tensors that are left out on purpose.
void require_weights_fit(const ModelOnMesh& model, WeightUse use, std::vector<std::string>* notes);

}  // namespace switchyard
