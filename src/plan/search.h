// Search: all meshes of a number of ranks, by estimated time.
#pragma once

#include <string>
#include <vector>

#include "plan/planner.h"

namespace switchyard {

struct FoundMesh {
  std::vector<std::string> keys;  // "ici_fsdp_parallelism=8": what a command line must say for it
  std::string mesh;
  StepPlan plan;
};

struct SearchResult {
  std::vector<FoundMesh> fitting;  // fastest first, at most `limit`
  std::int64_t legal = 0;          // meshes a run would accept
  std::int64_t too_large = 0;      // of those looked at in full, the ones over the memory
};

// Tries every way to spread the config's ranks over the axes data, fsdp, expert, tensor and context (as far
// as its mesh has them); parallelism the config gives to other axes stays. Time is estimated from one and two
// layers of a kind, and the fastest are then planned in full, until `limit` fit.
SearchResult search_meshes(const Config& config, const Topology& topology, std::size_t limit);

}  // namespace switchyard
