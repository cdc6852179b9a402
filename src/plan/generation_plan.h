// Plans `generate` and `serve`: the code that reads a prompt
// and generates a token runs without data on one rank.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "config/config.h"
#include "models/parameters.h"
#include "plan/planner.h"
#include "plan/topology.h"

namespace switchyard {

// The needs of one stage's first rank.
struct GenerationPlan {
  std::int64_t rows = 0;            // sequences at the same time, on all ranks
  std::int64_t prompt = 0;          // prompt tokens of each sequence
  std::int64_t capacity = 0;        // tokens of each sequence that the cache holds
  std::int64_t weights = 0;         // bytes, as this rank holds them
  std::int64_t packed_weights = 0;  // the part of `weights` in few bits
  std::int64_t host_weights = 0;    // bytes of the host (weight_places), beside `weights`
  std::int64_t cache = 0;           // bytes
  std::int64_t peak = 0;            // bytes
  StepPlan read, make;              // reading all prompts, and one token for each sequence
};

// Plans per_device_batch_size sequences a rank, with prompts of max_prefill_predict_length tokens, a cache of
// max_target_length, and weights as weight_format says. Weights that are `stored` have the types of
// load_parameters_path or, for a model_name without it, those that the model is published in. Returns one
// plan for each pipeline stage; a token passes all stages in turn, so its seconds are their sum. `notes`
// receives lines on the weights. Error(usage) when `generate` would refuse, such as for weights of another
// model in load_parameters_path.
std::vector<GenerationPlan> plan_generation(const Config& config, const Mesh& mesh, const Topology& topology,
                                            std::vector<std::string>* notes = nullptr);

// Total seconds of all stages, for GenerationPlan::read or make.
double seconds_of(const std::vector<GenerationPlan>& stages, StepPlan GenerationPlan::*part);
// The stage whose rank needs the most memory; the first one of equals.
const GenerationPlan& largest_stage(const std::vector<GenerationPlan>& stages);

// The plan as JSON (docs/json.md).
nlohmann::json generation_json(const Config& config, const std::vector<GenerationPlan>& stages,
                               const Mesh& mesh, const Topology& topology);

}  // namespace switchyard
