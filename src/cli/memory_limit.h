// Whether a run's memory is there, before it begins: by `plan`'s own numbers.
#pragma once

#include "cli/stored_model_command.h"
#include "config/config.h"
#include "dist/comm/processes.h"

namespace switchyard {

// What a plan says of one rank, in bytes.
struct PlannedMemory {
  std::int64_t weights = 0, peak = 0;
  std::int64_t all_weights = 0;  // of all ranks together, each once
};

// What `ranks` of one process take together at least: they have one copy of weights that they all hold, and
// of weights that are gathered for a while; of the rest each has its own.
std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks);

// Error(usage) where a training's ranks in this process need more than the machine, or the process's control
// group, has left. Without effect on GPUs, with ignore_memory_limit=true, and for what cannot be planned.
void require_memory_to_train(const Config& config, const Processes& processes);

// The same of a model that makes text, with room for so many texts of `capacity` tokens.
void require_memory_to_run(const std::string& command, const ModelToRun& run, std::int64_t rows,
                           std::int64_t capacity, bool forgets, const Processes& processes);

}  // namespace switchyard
