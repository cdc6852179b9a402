// Plan of `generate` and `serve`: a prompt that is read and a token that is made, by the code that makes
// them, run without data on one rank.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"
#include "plan/planner.h"
#include "plan/topology.h"

namespace switchyard {

struct GenerationPlan {
  std::int64_t rows = 0;            // texts at once, on all ranks
  std::int64_t prompt = 0;          // tokens of each that are read
  std::int64_t capacity = 0;        // tokens of each that the cache holds
  std::int64_t weights = 0;         // bytes, as this rank holds them
  std::int64_t packed_weights = 0;  // of which in few bits
  std::int64_t cache = 0;           // bytes
  std::int64_t peak = 0;            // bytes
  StepPlan read, make;              // all prompts, and a token of each text
};

// Of per_device_batch_size texts a rank, with prompts of max_prefill_predict_length tokens and a cache of
// max_target_length; weights as weight_format says. Rank 0, or the first rank of a stage of a pipeline.
// Error(usage) for what `generate` would refuse.
GenerationPlan plan_generation(const Config& config, const Mesh& mesh, const Topology& topology,
                               int stage = 0);

// docs/formats.md
nlohmann::json generation_json(const Config& config, const GenerationPlan& plan, const Mesh& mesh,
                               const Topology& topology);

}  // namespace switchyard
