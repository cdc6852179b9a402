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

// What one stage's first rank takes.
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
// max_target_length; weights as weight_format says. One plan for each stage of a pipeline, which a token
// passes in turn: its seconds are the sum of theirs. Error(usage) for what `generate` would refuse.
std::vector<GenerationPlan> plan_generation(const Config& config, const Mesh& mesh, const Topology& topology);

// Seconds of all stages in turn, of GenerationPlan::read or make.
double seconds_of(const std::vector<GenerationPlan>& stages, StepPlan GenerationPlan::*part);
// The stage whose rank needs the most memory, the first of equals.
const GenerationPlan& largest_stage(const std::vector<GenerationPlan>& stages);

// docs/formats.md
nlohmann::json generation_json(const Config& config, const std::vector<GenerationPlan>& stages,
                               const Mesh& mesh, const Topology& topology);

}  // namespace switchyard
