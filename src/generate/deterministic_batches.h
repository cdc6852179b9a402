// deterministic_batches: a text's tokens do not depend on the texts that share its batch.
#pragma once

#include <memory>

#include "config/config.h"
#include "kernels/registry/row_independence.h"
#include "models/model_config.h"
#include "parallel/mesh.h"

namespace switchyard {

// Returns what keeps rows independent while it lives; null unless deterministic_batches=true.
// Error(usage) where it cannot be kept: on a GPU, on a mesh that splits rows over ranks, for experts that
// drop tokens (capacity_factor, ragged_buffer_factor), or with random experts.
std::unique_ptr<RowIndependence> row_independence_of(const Config& config, const Mesh& mesh,
                                                     const ModelConfig& model);

}  // namespace switchyard
