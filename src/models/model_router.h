// Reads the config keys of the router and of the experts: a part of model_config().
#pragma once

#include "config/config.h"
#include "models/model_config.h"

namespace switchyard {

// Sets how experts are chosen and weighted in `m.moes.front()`. The block, name and compat of `m` must be
// set. Error(usage) for keys that the block cannot honour.
void read_router(const Config& c, ModelConfig& m);
// Sets biases and clamps of the experts in `m.moes.front()`. Error(usage) as above.
void read_experts(const Config& c, ModelConfig& m);
// Sets the balance loss in `m.moe_execution` and the rate of bias
// updates. read_router() must come first. Error(usage) as above.
void read_balance(const Config& c, ModelConfig& m);
// True when the optimizer decays the routers' biases, as MaxText does for some models.
bool decays_router_bias(const ModelConfig& m);

}  // namespace switchyard
