// Refuses a run before it begins when the machine lacks the memory that `plan` says it needs.
#pragma once

#include "engine/model.h"

namespace switchyard {

// The bytes of one rank, as `plan` computes them.
struct PlannedMemory {
  std::int64_t weights = 0, peak = 0;
  std::int64_t all_weights = 0;  // all ranks together, each weight once
};

// The least bytes that `ranks` ranks of one process need together. The ranks share one copy of weights that
// all of them hold, and of temporarily gathered weights; each rank has its own copy of the rest.
std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks);

// Error(usage) when a training's ranks in this process need more memory than the
// machine and the limits of control groups have available. Does nothing on GPUs,
// with ignore_memory_limit=true, and for a configuration that cannot be planned.
void require_memory_to_train(const Config& config, const Processes& processes);

// Error(usage) in the same cases, for a model that generates `rows` texts of `capacity` tokens at once.
// `evicts` and `checkpoints` are Generator's.
void require_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                           std::int64_t capacity, bool evicts, const Processes& processes,
                           std::int64_t checkpoints = 0);

// Returns whether that would not fail.
bool has_memory_to_run(const ModelOnMesh& run, std::int64_t rows, std::int64_t capacity, bool evicts,
                       const Processes& processes, std::int64_t checkpoints);

}  // namespace switchyard
