// GgufArchitecture: how GGUF files of one general.architecture value are read. Families have the rows.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "gguf/gguf_file.h"
#include "gguf/metadata.h"

namespace switchyard {

// A tensor's name below "blk.<i>." (GGUF) and below "model.layers.<i>." (transformers).
struct GgufName {
  std::string_view gguf, hub;
};

// Expert weights: GGUF has one tensor for all experts, transformers one tensor per expert.
struct GgufExperts {
  std::string_view begin = "mlp.experts.";  // the name below the layer begins so; the expert's number follows
  std::string_view gate = "gate_proj.weight", up = "up_proj.weight", down = "down_proj.weight";
};

// Numbers of `expert_gating_func`: how a router makes weights.
enum GgufGating : std::int64_t { kGgufSoftmax = 1, kGgufSigmoid = 2, kGgufSoftmaxOfChosen = 3 };

struct GgufArchitecture {
  std::string_view name;
  std::string_view type;                   // model_type of its config.json, unless `add` says another
  std::span<const GgufName> tensors = {};  // with names that differ from most architectures'
  GgufExperts experts = {};
  // The router settings that a file may state and `add` does not read: the gating function, and whether the
  // weights of the chosen experts are divided by their sum.
  GgufGating gating = kGgufSoftmax;
  bool divides_weights = false;
  bool alternating_halves = false;  // in the file, a head's query and key rows alternate between its halves
  bool norms_plus_one = false;      // the file stores 1 + weight for each norm
  bool rotates_part = false;        // `add` reads a head's rotated share; otherwise all of it is rotated
  bool rope_factors = false;        // a file may have rope_freqs.weight
  bool heads_by_layer = false;      // `add` reads numbers of heads, which may be lists
  bool heads_in_turns = false;      // a delta net's value heads: the first of each key head, the second, ...
  // Adds settings that hub_config_of() does not read for all architectures to a config.json of transformers;
  // null: there are none. Error(usage) naming the key for a value that config.json cannot express.
  void (*add)(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config) = nullptr;
};

// All rows (models/families/registry.cc).
std::span<const GgufArchitecture* const> gguf_architectures();

// Error(usage) listing all known architectures when the file has another one.
const GgufArchitecture& architecture_of(const GgufFile& file);

// Looks at the keys of an architecture that nobody has read, when its `config` is made. Error(usage) naming a
// key that changes what the model computes. Returns a line that names those without a meaning here, or "".
std::string check_other_keys(const GgufFile& file, const GgufArchitecture& architecture,
                             const GgufMetadata& metadata, const nlohmann::json& config);

}  // namespace switchyard
