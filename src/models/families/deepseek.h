// What later families have from DeepSeek-V3.
#pragma once

#include "models/families/common.h"

namespace switchyard {

extern const DecoderBlock kDeepseekBlock;

// The fields of the next two.
extern const HubFields kLatentFields, kExpertsOfDeepseek3Fields;

// Multi-head latent attention.
void read_latent_attention(const HubConfig& hub, ConfigKeys& keys);
void write_latent_attention(const ModelConfig& model, HubJson& hub);

// Of a model that has some, how many prediction layers.
void write_predictions(const ModelConfig& model, HubJson& hub);

// Where a config.json does not say.
struct ExpertDefaults {
  std::int64_t groups = 0;  // 0: it must
  double scaling = 2.5;
};
// Routed and shared experts, chosen by a sigmoid and a bias, from groups where there are some. Which layers
// have them is for the family to say.
void read_experts_of_deepseek3(const HubConfig& hub, const ExpertDefaults& defaults, ConfigKeys& keys);
void write_experts_of_deepseek3(const Config& config, const ModelConfig& model, HubJson& hub);
// Such files hold a bias of the router in any case (ModelFamily::restate).
void restate_router_bias(const ModelConfig& model, Restated& restated);

}  // namespace switchyard
