// The tensors of a model as they are stored: here one by one under our names, expert by expert, and what each
// is called in a Hugging Face folder.
#pragma once

#include <string>
#include <vector>

#include "models/families/hub_tensors.h"
#include "models/parameters.h"

namespace switchyard {

// One tensor on both sides; its elements are the same, transposed where `hub.transposed`.
struct StoredPair {
  std::string ours;    // "layers.3.moe.experts.17.wi_0"
  Shape shape;         // ours: [M,H]
  std::string theirs;  // "model.layers.3.mlp.experts.17.gate_proj.weight"
  HubTensors hub;      // that one tensor
};

// In the order of `specs`, experts in ascending order.
std::vector<StoredPair> stored_pairs(const std::vector<ParameterSpec>& specs, const ModelFamily& family);

}  // namespace switchyard
