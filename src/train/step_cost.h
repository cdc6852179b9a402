// The cost of one step on one rank: bytes and collectives. A run measures it, `plan` predicts it; one schema.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "autograd/host_reads.h"
#include "train/trainer.h"

namespace switchyard {

struct StepCost {
  std::vector<CollectiveCount> collectives;
  std::int64_t peak_bytes = 0;            // the highest balance of this rank's account
  std::int64_t host_peak_bytes = 0;       // the most pinned host memory it held
  std::vector<std::int64_t> layer_bytes;  // kept for backward by each decoder layer
  HostReads host_reads;                   // number of times that the host read from the device
};

// Bytes of one rank as if it were alone. They add up: activations are the peak minus all other parts.
struct RankMemory {
  std::int64_t host_weights = 0;  // of the host (weight_places), in no sum of the others
  std::int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, total = 0;
};
RankMemory rank_memory(Trainer& trainer, const StepCost& cost);

// `ranks`, `mesh`, `parameters`, `per_rank`, `collectives` and
// `layers` of summary.json and of plan's JSON (docs/run-files.md).
nlohmann::json to_json(const Config& config, Trainer& trainer, const StepCost& cost);

// Error(usage) for a model, batch and mesh that do not fit together: experts that do not divide evenly, or
// token chunks that do not divide a sequence.
void check_layout(const Config& config, const Mesh& mesh, const ModelConfig& model, const BatchSizes& sizes);

}  // namespace switchyard
