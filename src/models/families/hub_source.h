// HubSource: a model as others publish it: a Hugging Face folder, or a GGUF file.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/hub_weights.h"

namespace switchyard {

struct HubSource {
  nlohmann::json config;  // config.json, or what it would be
  std::shared_ptr<const HubWeights> weights;
  std::vector<std::string> files;    // that hold them: paths
  std::vector<std::string> notices;  // one line each: what a user should know of how they were read
};

// Whether the path is one: a folder with config.json, or a file that begins as GGUF.
bool is_hub_source(const std::string& path);

// True where two tensors hold the same bits as float32 values.
bool same_tensors(const HubWeights& weights, const std::string& a, const std::string& b);

// A head that differs from the embedding is the model's own, whatever config.json says of ties: the source's
// config says so then. Error(usage) for a path that is neither, and for what is broken in it.
HubSource open_hub_source(const std::string& path);

}  // namespace switchyard
