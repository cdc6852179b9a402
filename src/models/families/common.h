// What model families share in their config.json.
#pragma once

#include "models/families/family.h"

namespace switchyard {

// A whole number as one: our keys for scales and factors are integers.
nlohmann::json shortest(double value);

// config.json -> keys.
void read_common(const HubConfig& hub, ConfigKeys& keys);  // sizes, and what no family of ours has is refused
// Rotary embeddings: theta, and how they are stretched. `usual_theta`: where a file states none, or 0.
struct RopeDefaults {
  bool latent = false;  // MLA: interleaved pairs, and scores scaled by mscale
  double usual_theta = 0;
};
void read_rope(const HubConfig& hub, const RopeDefaults& defaults, ConfigKeys& keys);
// `usual_head_dim`: 0 for width / heads.
void read_grouped_attention(const HubConfig& hub, std::int64_t usual_head_dim, bool qk_norm,
                            ConfigKeys& keys);
// Mistral's and Mixtral's, who have one in every layer.
void refuse_window(const HubConfig& hub);

// Keys -> config.json.
HubJson write_common(const Config& config, const ModelConfig& model);
void write_grouped_attention(const ModelConfig& model, HubJson& hub);

}  // namespace switchyard
