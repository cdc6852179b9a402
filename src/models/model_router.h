// What a config says of the router and of the experts' parts: a piece of model_config().
#pragma once

#include "config/config.h"
#include "models/model_config.h"

namespace switchyard {

// Sets how experts are chosen and weighed in `m.moe`, whose block, name and compat are known. Error(usage)
// for keys that the block cannot honour.
void read_router(const Config& c, ModelConfig& m);
// Sets biases and clamps of the experts in `m.moe`. Error(usage) as above.
void read_experts(const Config& c, ModelConfig& m);
// Sets the balance loss in `m.moe_execution` and the rate of bias updates; the router is read. Error(usage) as
// above.
void read_balance(const Config& c, ModelConfig& m);
// Whether the routers' biases are parameters that the optimizer decays, as MaxText has it for some models.
bool decays_router_bias(const ModelConfig& m);

}  // namespace switchyard
