// A step without data, before one with data: what is wrong with a layout and shows only while a step runs.
#pragma once

#include "engine/model.h"
#include "train/trainer.h"

namespace switchyard {

// A batch without tokens, for a step in an abstract context.
Batch abstract_batch(const BatchSizes& sizes);

// Runs one step of each stage's first rank in an abstract context. Error(usage) of shard_mode=explicit.
void dry_step(const ModelOnMesh& model, const TrainConfig& training, const BatchSizes& sizes);

}  // namespace switchyard
