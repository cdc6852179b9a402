// Names a layout in common terms.
#pragma once

#include <string>

#include "config/config.h"
#include "models/model_config.h"
#include "parallel/mesh.h"

namespace switchyard {

// Names how tokens reach their experts, and what else the mesh splits:
// "ring of experts, FSDP", "ragged all-to-all, tensor parallelism", "dense, every
// expert on every token", "tensor parallelism", "everything on one rank".
std::string strategy_text(const Config& config, const ModelConfig& model, const Mesh& mesh);

}  // namespace switchyard
