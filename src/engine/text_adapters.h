// Several adapters beside one model, of which each text has one or none (models/adapter.h, Adapter::count).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "models/families/peft.h"
#include "models/parameters.h"
#include "parallel/mesh.h"

namespace switchyard {

struct NamedAdapter {
  std::string name, folder;
  std::shared_ptr<const PeftAdapter> read;
};

// The adapter with number n is the entry n - 1; null: a free place.
using AdapterPlaces = std::vector<std::shared_ptr<const PeftAdapter>>;

// The names and folders of adapter=NAME=FOLDER,NAME=FOLDER; none where the key names one folder, or nothing.
// Error(usage) for a name that is empty or there twice.
std::vector<NamedAdapter> named_adapters(const Config& config);

// Reads the adapter at `path` for a model whose weights do not change: with adapter_scale, each weight's
// factor in its B, and in the activations' dtype, so that no call casts or scales it. Error(usage).
PeftAdapter read_adapter_to_run(const std::string& path, const Config& config, const ModelConfig& model);
// Reads one of several adapters, with adapter_scale. Error(usage), also for one that has whole weights in
// place of the model's, which texts with several adapters share.
std::shared_ptr<const PeftAdapter> read_text_adapter(const std::string& path, const Config& config,
                                                     const ModelConfig& model);

// Error(usage) where texts of this model cannot have several adapters.
void check_several_adapters(const Mesh& mesh, const ModelConfig& model);

// The adapters side by side: each weight's rank is the largest, and the factors are in the B. Null where all
// places are free. `dtype`: of the parameters.
std::shared_ptr<const Adapter> adapters_together(const AdapterPlaces& places, DType dtype);

// Makes the parameters of adapters_together(), and takes all others from `base`.
Parameters::FillBlock with_text_adapters(Parameters::FillBlock base, AdapterPlaces places);

}  // namespace switchyard
