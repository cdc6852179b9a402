// A run is refused before it begins where the machine lacks the memory that `plan` says it needs.
#pragma once

#include "engine/model.h"

namespace switchyard {

// The bytes of one rank, as `plan` has them.
struct PlannedMemory {
  std::int64_t weights = 0, peak = 0;
  std::int64_t all_weights = 0;  // of all ranks together, each once
};

// The least bytes that `ranks` ranks of one process take together. The ranks share one copy of weights that
// they all hold, and of weights that are gathered for a while; each rank has its own copy of the rest.
std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks);

// Error(usage) where a training's ranks in this process need more memory than is available, on the machine
// and within the limits of control groups. Does nothing on GPUs, with ignore_memory_limit=true, and for a
// configuration that cannot be planned.
void require_memory_to_train(const Config& config, const Processes& processes);

// Error(usage) in the same cases, for a model that makes `rows` texts of `capacity` tokens at once.
void require_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                           std::int64_t capacity, bool evicts, const Processes& processes);

}  // namespace switchyard
