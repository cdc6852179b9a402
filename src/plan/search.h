// Search: ranks all meshes for a number of ranks by estimated time.
#pragma once

#include <string>
#include <vector>

#include "plan/planner.h"

namespace switchyard {

struct FoundMesh {
  std::vector<std::string> keys;  // command-line keys for the mesh: "ici_fsdp_parallelism=8"
  std::string mesh;
  StepPlan plan;
};

struct SearchResult {
  std::vector<FoundMesh> fitting;  // fastest first, at most `limit`
  std::int64_t legal = 0;          // meshes a run would accept
  std::int64_t too_large = 0;      // fully planned meshes that need too much memory
};

// Tries every way to spread the config's ranks over the axes data, fsdp, expert, tensor and context (if its
// mesh has them); other axes keep the config's parallelism. Time is estimated from one and two layers of each
// kind; then the fastest meshes are planned in full, until `limit` of them fit.
SearchResult search_meshes(const Config& config, const Topology& topology, std::size_t limit);

}  // namespace switchyard
