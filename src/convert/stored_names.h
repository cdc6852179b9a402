// The tensors of a model as they are stored: one by one under our
// names, each expert alone, with the Hugging Face name of each.
#pragma once

#include <string>
#include <vector>

#include "models/families/hub_tensors.h"
#include "models/parameters.h"

namespace switchyard {

// One tensor on both sides. The elements are the same, transposed where `hub.transposed` is set.
struct StoredPair {
  std::string ours;    // "layers.3.moe.experts.17.wi_0"
  Shape shape;         // ours: [M,H]
  std::string theirs;  // "model.layers.3.mlp.experts.17.gate_proj.weight"
  HubTensors hub;      // `theirs`, as hub_tensors() describes it
};

// Lists tensors in the order of `specs`, with experts in ascending order.
std::vector<StoredPair> stored_pairs(const std::vector<ParameterSpec>& specs, const ModelFamily& family);

}  // namespace switchyard
