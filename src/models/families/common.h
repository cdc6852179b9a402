// What model families share in their config.json.
#pragma once

#include "models/families/family.h"

namespace switchyard {

// A whole number as one: our keys for scales and factors are integers.
nlohmann::json shortest(double value);

// Fields that every family has.
const HubFields& common_fields();
// Fields of a family with grouped queries.
extern const HubFields kGroupedFields;
// Error(usage) for a field with a value that `family` does not compute.
void check_fields(const HubConfig& hub, const ModelFamily& family);

// config.json -> keys.
void read_common(const HubConfig& hub, ConfigKeys& keys);  // sizes, and what no family of ours has is refused
// Rotary embeddings: theta, and how they are stretched. `usual_theta`: where a file states none, or 0.
struct RopeDefaults {
  bool latent = false;  // MLA: interleaved pairs, and scores scaled by mscale
  double usual_theta = 0;
  // Share of a head that is rotated, where a file states none; 0: the family rotates all of it.
  double usual_share = 0;
};
void read_rope(const HubConfig& hub, const RopeDefaults& defaults, ConfigKeys& keys);
struct GroupedAttention {
  std::int64_t head_dim = 0;  // where a file states none; 0: width / heads
  bool qk_norm = false;
  bool biases = false;  // whether the family reads attention_bias
};
void read_grouped_attention(const HubConfig& hub, const GroupedAttention& family, ConfigKeys& keys);
// The numbers of the layers for which the list `key` says `yes`; all others say `no`, and there is one word a
// layer.
nlohmann::json layers_that_are(const HubConfig& hub, const char* key, const char* yes, const char* no);
// layer_types, of a family with windows: those that are sliding_attention, the others full_attention. Without
// it windows are where the block has them.
void read_windowed_layers(const HubConfig& hub, ConfigKeys& keys);
// Mistral's and Mixtral's `sliding_window`, which is that of every layer.
void read_window_of_all(const HubConfig& hub, ConfigKeys& keys);
// Of a family that has none, and one word for all its layers in layer_types.
void refuse_windows(const HubConfig& hub, const char* kind_of_layers = "full_attention");

// Keys -> config.json.
HubJson write_common(const Config& config, const ModelConfig& model);
HubJson layer_types(const ModelConfig& model);  // which layers have a window
void write_grouped_attention(const ModelConfig& model, HubJson& hub);

}  // namespace switchyard
