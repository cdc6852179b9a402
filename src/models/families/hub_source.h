// HubSource: a published model, from a Hugging Face folder or a GGUF file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/hub_weights.h"

namespace switchyard {

struct HubSource {
  nlohmann::json config;  // config.json, or the equivalent for a GGUF file
  std::shared_ptr<const HubWeights> weights;
  std::vector<std::string> files;    // paths of the files with the weights
  std::vector<std::string> notices;  // one line each: what a user should know about how they were read
};

// True for a folder with config.json, or a file that begins as GGUF.
bool is_hub_source(const std::string& path);

// True when both tensors hold the same bits as float32 values.
bool same_tensors(const HubWeights& weights, const std::string& a, const std::string& b);

// Opens a source. A head that differs from the embedding is the model's own, whatever config.json says of
// ties; `config` then says so. Error(usage) for another path, and for a broken source.
HubSource open_hub_source(const std::string& path);

}  // namespace switchyard
