// Runs a step without data before the first real one, to find layout errors that only a step shows.
#pragma once

#include "engine/model.h"
#include "train/trainer.h"

namespace switchyard {

// A batch without tokens, for a step in an abstract context.
Batch abstract_batch(const BatchSizes& sizes);

// Runs one step of each stage's first rank in an abstract context. Error(usage) for shard_mode=explicit.
void dry_step(const ModelOnMesh& model, const TrainConfig& training, const BatchSizes& sizes);

}  // namespace switchyard
