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
  std::vector<std::string> overrides;    // key=value of the command line
  std::optional<double> tolerance = {};  // none: that of the kind of case
  bool native = false;                   // also the arithmetic of `generate`, of cases of few bits
};

// Runs the case at `path`: a Hugging Face folder, a model of few bits (a GGUF file, or a folder with
// expected.safetensors), a MoE-layer file *.safetensors or a training run *.json.
// Throws Error(usage) when it is none of them, incomplete or malformed, or when its config with the overrides
// is wrong.
CaseReport run_case(const CaseRequest& request);

// The four kinds, one a file.
CaseReport verify_hub_folder(const CaseRequest& request);
CaseReport verify_quantized(const CaseRequest& request);
CaseReport verify_moe_layer(const CaseRequest& request);
CaseReport verify_training_run(const CaseRequest& request);

// A case's own keys with the overrides on top, float32 unless an override says otherwise. `rows` and
// `sequence` are the case's global batch: per_device_batch_size follows from it and the ranks. `ranks` on the
// command line replaces the case's whole mesh. Notices that only the overrides cause go to report.notices.
Config case_config(std::map<std::string, nlohmann::json> keys, const CaseRequest& request, std::int64_t rows,
                   std::int64_t sequence, CaseReport& report);

// Whether a key shapes the mesh: ranks, slices, the sizes of axes, a mesh file.
bool is_mesh_key(const std::string& key);

// i32 [B,S] inputs and targets as a batch of whole rows; a target of -100 is a place without one. Throws
// Error(usage) naming `path` for other shapes and for ids outside [0, vocab).
Batch case_batch(const std::string& path, const Tensor& inputs, const Tensor& targets, std::int64_t vocab);

}  // namespace switchyard
