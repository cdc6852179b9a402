// Refuses a run before it begins when the machine lacks the memory that `plan` says it needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/model.h"
#include "kernels/machine/machine.h"

namespace switchyard {

// The bytes of one rank, as `plan` computes them.
struct PlannedMemory {
  std::int64_t weights = 0, peak = 0;
  std::int64_t all_weights = 0;  // all ranks together, each weight once
};

// The least bytes that `ranks` ranks of one process need together. The ranks share one copy of weights that
// all of them hold, and of temporarily gathered weights; each rank has its own copy of the rest.
std::int64_t least_memory_of_process(const PlannedMemory& planned, std::int64_t ranks);

// What a process with these ranks and threads on `cores` cores lacks, for people; "" where it has enough.
std::string lacking_memory(const PlannedMemory& planned, std::int64_t ranks, int cores,
                           const AvailableMemory& available);

// Error(usage) when a training's ranks in this process need more memory than the machine, the limits of
// control groups and those of the address space leave. On GPUs it counts only the weights that lie on the
// host (weight_places). Does nothing with ignore_memory_limit=true. What planning refuses, a run would, too:
// it is passed on. Where it fails otherwise, a line on standard error says that memory was not checked.
void require_memory_to_train(const Config& config, const Processes& processes);

// Error(usage) in the same cases, for a model that generates `rows` texts of `capacity` tokens at once.
// `evicts` and `checkpoints` are Generator's.
void require_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                           std::int64_t capacity, bool evicts, const Processes& processes,
                           std::int64_t checkpoints = 0);

// Error(usage) in the same cases, for the weights alone of models that are there together, on one mesh: what
// an evaluation takes besides is little beside them.
void require_memory_of_weights(const std::string& command, std::span<const ModelOnMesh* const> models,
                               const Processes& processes);

// Returns whether that would not fail for lack of memory.
bool has_memory_to_run(const std::string& command, const ModelOnMesh& run, std::int64_t rows,
                       std::int64_t capacity, bool evicts, const Processes& processes,
                       std::int64_t checkpoints);

}  // namespace switchyard
