// Planner: one training step of one rank, run without data.
//
// The very code of a run executes - model, backward, reduction, update - in an abstract context
// (autograd/context.h). What it counts is therefore what a run counts, on any number of ranks.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/config.h"
#include "engine/model.h"
#include "plan/topology.h"
#include "train/step_cost.h"

namespace switchyard {

struct StepPlan {
  StepCost cost;
  std::int64_t passes = 0;  // through the experts; 0 without moe_dropless_fallback's cap
  RankMemory memory;
  double flops = 0;          // of this rank
  std::int64_t kernels = 0;  // that this rank runs
  double compute_seconds = 0, memory_seconds = 0, network_seconds = 0;
  double bubble_seconds = 0;                       // waiting of a pipeline's stage
  std::vector<LayerRange> layers;                  // of each block of its stage
  Place peak;                                      // where the peak of memory is
  std::vector<double> layer_flops, layer_seconds;  // per decoder layer, forward and backward
  nlohmann::json measured;                         // what summary.json of a run would hold

  double seconds() const { return compute_seconds + memory_seconds + network_seconds + bubble_seconds; }
  std::string bound() const;  // "compute", "memory" or "network": the largest part
};

// The step of rank 0, or of the first rank of another stage of a pipeline. `imbalance`: rows that arrive at
// this rank's experts over the mean of the ranks. Error(usage) for what a run would refuse.
StepPlan plan_step(const Config& config, const Mesh& mesh, const Topology& topology, double imbalance = 1,
                   int stage = 0);

// The same for a model that may not quite be the config's (fewer layers).
StepPlan plan_model(const ModelOnMesh& model, const Topology& topology, double imbalance, int stage = 0);

struct SkewPoint {
  double imbalance = 1;
  std::int64_t total_peak_bytes = 0;
  double seconds = 0;
  std::int64_t passes = 0;  // as StepPlan's
};
// Points from balance to where one rank gets all the rows it can; only balance where the load of the experts
// does not decide what a rank holds.
std::vector<SkewPoint> skew_curve(const Config& config, const Mesh& mesh, const Topology& topology,
                                  const StepPlan& balanced);
// The largest imbalance that fits, between the points by straight lines, rounded down to a tenth; 0 when not
// even balance fits, and the last point's when all do.
double fits_up_to(const std::vector<SkewPoint>& curve, std::int64_t memory_bytes);

// Every stage of a pipeline, the first one being the plan of rank 0; that one alone without a pipeline.
std::vector<StepPlan> plan_stages(const Config& config, const Mesh& mesh, const Topology& topology);
// The one whose memory is the largest, the first of equals.
std::size_t largest_stage(const std::vector<StepPlan>& stages);

// docs/formats.md; `curve` is that of the first stage.
nlohmann::json plan_json(const std::vector<StepPlan>& stages, const std::vector<SkewPoint>& curve,
                         const Topology& topology);

}  // namespace switchyard
