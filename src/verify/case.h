// Cases of `switchyard verify`: stored inputs, weights and results of another implementation.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "verify/report.h"

namespace switchyard {

struct CaseRequest {
  std::string path;
  std::vector<std::string> overrides;    // key=value from the command line
  std::optional<double> tolerance = {};  // none: the default of the kind of case
  bool native = false;                   // also checks `generate`'s arithmetic, in packed cases
};

// Runs the case at `path`: a Hugging Face folder or a GGUF file beside io.safetensors, a packed model (a GGUF
// file without it, or a folder with expected.safetensors), a MoE-layer file *.safetensors or a
// training run *.json. Throws Error(usage) when it is none of these, is
// incomplete or malformed, or when its config with the overrides is invalid.
CaseReport run_case(const CaseRequest& request);

// The kinds of cases, one file each. A Hugging Face folder with an adapter in it is a kind of its own.
CaseReport verify_hub_model(const CaseRequest& request);
CaseReport verify_adapter(const CaseRequest& request);
CaseReport verify_quantized(const CaseRequest& request);
CaseReport verify_moe_layer(const CaseRequest& request);
CaseReport verify_training_run(const CaseRequest& request);

// A case's own keys with the overrides on top; float32 unless an override changes that. `rows` and `sequence`
// are the case's global batch; per_device_batch_size follows from it and the ranks. `ranks` on the command
// line replaces the case's mesh. Notices caused only by overrides go to report.notices.
Config case_config(std::map<std::string, nlohmann::json> keys, const CaseRequest& request, std::int64_t rows,
                   std::int64_t sequence, CaseReport& report);

// True when a key shapes the mesh: ranks, slices, the sizes of axes, a mesh file.
bool is_mesh_key(const std::string& key);

// Makes a batch of whole rows from i32 [B,S] inputs and targets; a target of -100 means none. Throws
// Error(usage) that names `path` for other shapes and for ids outside [0, vocab).
Batch case_batch(const std::string& path, const Tensor& inputs, const Tensor& targets, std::int64_t vocab);

}  // namespace switchyard
