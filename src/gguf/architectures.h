// GgufArchitecture: what general.architecture decides in a GGUF file, an entry of a table each.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "gguf/gguf_file.h"
#include "gguf/metadata.h"

namespace switchyard {

// A tensor's name below "blk.<i>." and below "model.layers.<i>.".
struct GgufName {
  std::string_view gguf, hub;
};

// One tensor for all experts in a file, one an expert in transformers.
struct GgufExperts {
  std::string_view begin = "mlp.experts.";  // of the name below the layer; the expert's number follows
  std::string_view gate = "gate_proj.weight", up = "up_proj.weight", down = "down_proj.weight";
};

struct GgufArchitecture {
  std::string_view name;
  std::span<const GgufName> tensors = {};  // that have another name than in most architectures
  GgufExperts experts = {};
  bool alternating_halves =
      false;                    // rows of a head's queries and keys, in the file, come from each half in turn
  bool norms_plus_one = false;  // the file has 1 + weight of each norm
  bool rotates_part = false;    // `add` reads how much of a head is rotated; elsewhere all of it is
  bool rope_factors = false;    // a file may have rope_freqs.weight
  // Adds `model_type` to a config.json of transformers, and what hub_config_of() has not read for all.
  // Error(usage) naming the key for a value that cannot be told in one.
  void (*add)(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config);
};

// Error(usage) that lists all of them for a file of another.
const GgufArchitecture& architecture_of(const GgufFile& file);

// gguf_delta_net.cc: the config of qwen3next and qwen35moe.
void add_delta_net_config(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config);

// `rope.dimension_count` of a head's width, as transformers' partial_rotary_factor.
void add_rotated_share(const GgufMetadata& metadata, nlohmann::json& config);

}  // namespace switchyard
