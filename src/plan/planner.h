// Planner: one training step of one rank, run without data.
//
// The code of a real run (model, backward, reduction, update) executes in an abstract context
// (autograd/context.h). So the plan counts exactly what a run counts, for any number of ranks.
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
  std::int64_t passes = 0;  // passes through the experts; 0 without the cap of moe_dropless_fallback
  RankMemory memory;
  double flops = 0;          // flops of this rank
  std::int64_t kernels = 0;  // kernels that this rank runs; of a GPU those that are started
  double compute_seconds = 0, memory_seconds = 0, network_seconds = 0;
  double start_seconds = 0;                        // between a GPU's kernels
  double bubble_seconds = 0;                       // idle time of a pipeline stage
  std::vector<LayerRange> layers;                  // layers of each block of its stage
  Place peak;                                      // where memory peaks
  std::vector<double> layer_flops, layer_seconds;  // for each decoder layer, forward and backward
  nlohmann::json measured;                         // the values that a run's summary.json would hold

  double seconds() const {
    return compute_seconds + memory_seconds + network_seconds + start_seconds + bubble_seconds;
  }
  std::string bound() const;  // "compute", "memory" or "network": the largest of these parts
  void count_gpu_kernels(const Topology& topology, std::int64_t started);
};

// Plans the step of rank 0, or of the first rank of another pipeline stage. `imbalance`: rows that arrive at
// this rank's experts over the mean of the ranks. Error(usage) for anything that a run would refuse.
StepPlan plan_step(const Config& config, const Mesh& mesh, const Topology& topology, double imbalance = 1,
                   int stage = 0);

// Plans a model that may differ from the config's (fewer layers).
StepPlan plan_model(const ModelOnMesh& model, const Topology& topology, double imbalance, int stage = 0);

struct SkewPoint {
  double imbalance = 1;
  std::int64_t total_peak_bytes = 0;
  double seconds = 0;
  std::int64_t passes = 0;  // as in StepPlan
};
// Points from even balance to one rank with all the rows that it can get. Only even balance where the load of
// the experts does not change a rank's memory.
std::vector<SkewPoint> skew_curve(const Config& config, const Mesh& mesh, const Topology& topology,
                                  const StepPlan& balanced);
// The largest imbalance that fits in memory, by linear interpolation between the points, rounded down to a
// tenth; 0 when even balance does not fit; the last point's imbalance when all points fit.
double fits_up_to(const std::vector<SkewPoint>& curve, std::int64_t memory_bytes);

// The plans of all pipeline stages, that of rank 0 first; without a pipeline only the plan of rank 0.
std::vector<StepPlan> plan_stages(const Config& config, const Mesh& mesh, const Topology& topology);
// The index of the stage that needs the most memory; the first one of equals.
std::size_t largest_stage(const std::vector<StepPlan>& stages);

// The plan as JSON (docs/json.md); `curve` belongs to the first stage.
nlohmann::json plan_json(const std::vector<StepPlan>& stages, const std::vector<SkewPoint>& curve,
                         const Topology& topology);

}  // namespace switchyard
