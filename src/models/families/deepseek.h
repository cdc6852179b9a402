// Reads and writes the parts of config.json that later families took over from DeepSeek-V3.
#pragma once

#include <optional>

#include "models/families/common.h"

namespace switchyard {

extern const DecoderBlock kDeepseekBlock;

// The config.json fields of the two readers below.
extern const HubFields kLatentFields, kExpertsOfDeepseek3Fields;

// transformers' classes build the norms of latents with their own epsilon, whatever rms_norm_eps is.
inline constexpr double kHubLatentEpsilon = 1e-6;
// True for the epsilon above.
bool has_hub_latent_epsilon(const ModelConfig& model);

// Reads multi-head latent attention.
void read_latent_attention(const HubConfig& hub, ConfigKeys& keys);
void write_latent_attention(const ModelConfig& model, HubJson& hub);

// Reads first_k_dense_replace: the layers before the first with experts. `absent`: of a file that does not
// state it; none: it must.
void read_first_expert_layer(const HubConfig& hub, std::optional<std::int64_t> absent, ConfigKeys& keys);
// read_first_expert_layer() for files that may have mlp_layer_types, a word for each layer.
void read_expert_layers(const HubConfig& hub, std::int64_t absent, ConfigKeys& keys);
// Writes mlp_layer_types.
void write_expert_layers(const ModelConfig& model, HubJson& hub);

// Writes the number of prediction layers, for a model that has some.
void write_predictions(const ModelConfig& model, HubJson& hub);

// Defaults for a config.json that does not state them.
struct ExpertDefaults {
  std::int64_t groups = 0;  // 0: the file must state them
  double scaling = 2.5;
};
// Reads routed and shared experts, chosen by a sigmoid and a bias, from groups when the file states groups.
// The family itself reads which layers have experts.
void read_experts_of_deepseek3(const HubConfig& hub, const ExpertDefaults& defaults, ConfigKeys& keys);
void write_experts_of_deepseek3(const Config& config, const ModelConfig& model, HubJson& hub);
// Adds a router bias to a model without one: these files always hold it (ModelFamily::restate).
void restate_router_bias(const ModelConfig& model, Restated& restated);

}  // namespace switchyard
