#include "plan/planner.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "moe/dispatch/common.h"
#include "plan/plan_clock.h"
#include "train/abstract_rank.h"
#include "train/dry_step.h"

namespace switchyard {
std::string StepPlan::bound() const {
  if (compute_seconds >= memory_seconds && compute_seconds >= network_seconds) return "compute";
  return memory_seconds >= network_seconds ? "memory" : "network";
}

void StepPlan::count_gpu_kernels(const Topology& topology, std::int64_t started) {
  kernels = started;
  start_seconds = static_cast<double>(started) * topology.kernel_start_seconds;
}

namespace {

Trainer trainer_of(const ModelOnMesh& of, Context& context) {
  return Trainer(context, of.model, train_config(of.config, of.model, of.mesh.axis_size("stage")),
                 of.create(context));
}

struct MemoryPeak {
  std::int64_t bytes;
  Place place;
  std::int64_t host_bytes;
};

struct GpuStep {
  MemoryPeak peak;  // of arrays, and the workspace of kernels
  std::int64_t kernels;
};

GpuStep step_on_gpu(const ModelOnMesh& of, const Topology& topology, double imbalance, int stage) {
  NoCosts costs;
  AbstractRank rank(of.config, of.mesh, stage, costs, WorkspaceOf::gpu, topology.ranks_per_process(), costs,
                    imbalance, topology.gpu_major);
  Trainer trainer = trainer_of(of, rank.context());
  const BatchSizes sizes = batch_sizes(of.config, of.mesh);
  if (rank.context().ahead != nullptr) trainer.step(0, abstract_batch(sizes));
  rank.account().reset_peak();
  MemoryAccount& host = rank.context().offload->account();
  host.reset_peak();
  const std::int64_t before = rank.gpu_kernels();
  trainer.step(0, abstract_batch(sizes));
  return {{rank.account().peak(), rank.account().peak_place(), host.peak()}, rank.gpu_kernels() - before};
}

}  // namespace

StepPlan plan_model(const ModelOnMesh& of, const Topology& topology, double imbalance, int stage) {
  const Config& config = of.config;
  const ModelConfig& model = of.model;
  const Mesh& mesh = of.mesh;
  const BatchSizes sizes = batch_sizes(config, mesh);
  check_layout(config, mesh, model, sizes);
  std::optional<GpuStep> on_gpu;
  if (topology.gpu_major > 0) on_gpu = step_on_gpu(of, topology, imbalance, stage);
  StepPlan plan;
  PlanClock clock(topology, model.depth(), plan);
  const TrainConfig training = train_config(config, model, mesh.axis_size("stage"));
  AbstractRank rank(config, mesh, stage, clock, topology.workspace(), topology.ranks_per_process(), clock,
                    imbalance, topology.gpu_major);
  Context& context = rank.context();
  clock.watch(context.comm->position());
  Trainer trainer = trainer_of(of, context);
  if (context.ahead != nullptr) {  // the first step only learns what to start ahead in all others
    trainer.step(0, abstract_batch(sizes));
    context.comm->reset_counts();
    clock.reset();
  }
  rank.account().reset_peak();
  context.host_reads.reset();
  StepResult result = trainer.step(0, abstract_batch(sizes));
  for (const LayerStatistics& layer : result.layers) plan.passes = std::max(plan.passes, layer.passes);
  if (on_gpu) plan.count_gpu_kernels(topology, on_gpu->kernels);
  const MemoryPeak peak =
      on_gpu ? on_gpu->peak : MemoryPeak{rank.account().peak(), rank.account().peak_place(), 0};
  plan.cost = {context.comm->counts(), peak.bytes, peak.host_bytes, std::move(result.layer_bytes),
               context.host_reads};
  plan.memory = rank_memory(trainer, plan.cost);
  plan.layers = layers_of(context.stage, model.layers);
  plan.peak = peak.place;
  plan.measured = to_json(config, trainer, plan.cost);
  // While a pipeline fills and empties, a stage waits.
  plan.bubble_seconds =
      plan.seconds() *
      pipeline_bubble(training.schedule_of_stages, {context.stage.count, context.stage.repeats,
                                                    training.accumulation * training.stage_microbatches});
  return plan;
}

StepPlan plan_step(const Config& config, const Mesh& mesh, const Topology& topology, double imbalance,
                   int stage) {
  return plan_model(ModelOnMesh(config, mesh, ModelUse::train), topology, imbalance, stage);
}

std::vector<StepPlan> plan_stages(const Config& config, const Mesh& mesh, const Topology& topology) {
  std::vector<StepPlan> stages;
  for (int stage = 0; stage < mesh.axis_size("stage"); ++stage)
    stages.push_back(plan_step(config, mesh, topology, 1, stage));
  return stages;
}

std::size_t largest_stage(const std::vector<StepPlan>& stages) {
  const auto largest = std::max_element(
      stages.begin(), stages.end(),
      [](const StepPlan& a, const StepPlan& b) { return a.cost.peak_bytes < b.cost.peak_bytes; });
  return static_cast<std::size_t>(largest - stages.begin());
}

std::vector<SkewPoint> skew_curve(const Config& config, const Mesh& mesh, const Topology& topology,
                                  const StepPlan& balanced) {
  std::vector<SkewPoint> curve{{1, balanced.cost.peak_bytes, balanced.seconds(), balanced.passes}};
  const ModelConfig model = model_config(config);
  if (model.moe().experts == 0 || !model.moe_execution.sparse) return curve;
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  Context context;
  context.mesh = &own;
  context.rules = &rules;
  const std::int64_t ranks = own.product(expert_axes(context, model.moe().experts));
  const std::int64_t here = model.moe().experts / ranks;
  // Where every token of the group has as many of its choices here as can be.
  const double most = static_cast<double>(ranks) * static_cast<double>(std::min(here, model.moe().slots)) /
                      static_cast<double>(model.moe().slots);
  for (double imbalance : {1.25, 1.5, 2.0, 3.0, 4.0, 8.0, 16.0, most}) {
    if (imbalance > most || imbalance <= curve.back().imbalance) continue;
    const StepPlan plan = plan_step(config, mesh, topology, imbalance);
    curve.push_back({imbalance, plan.cost.peak_bytes, plan.seconds(), plan.passes});
  }
  return curve;
}

double fits_up_to(const std::vector<SkewPoint>& curve, std::int64_t memory_bytes) {
  double fits = 0;
  for (std::size_t i = 0; i < curve.size(); ++i) {
    const SkewPoint& point = curve[i];
    if (point.total_peak_bytes <= memory_bytes) {
      fits = point.imbalance;
      continue;
    }
    if (i == 0) return 0;
    const SkewPoint& before = curve[i - 1];
    const double share = static_cast<double>(memory_bytes - before.total_peak_bytes) /
                         static_cast<double>(point.total_peak_bytes - before.total_peak_bytes);
    fits = before.imbalance + share * (point.imbalance - before.imbalance);
    break;
  }
  return std::floor(fits * 10) / 10;
}

nlohmann::json plan_json(const std::vector<StepPlan>& stages, const std::vector<SkewPoint>& curve,
                         const Topology& topology) {
  const StepPlan& plan = stages.front();
  nlohmann::json result = plan.measured;
  for (std::size_t i = 0; i < result["layers"].size(); ++i) {
    result["layers"][i]["flops"] = plan.layer_flops[i];
    result["layers"][i]["seconds"] = plan.layer_seconds[i];
  }
  result["peak_at"] = {
      {"phase", std::string(plan.peak.phase)}, {"op", std::string(plan.peak.op)}, {"layer", plan.peak.layer}};
  result["flops_per_rank"] = plan.flops;
  result["kernels_per_rank"] = plan.kernels;
  result["estimated_step_seconds"] = plan.seconds();
  result["seconds"] = {{"compute", plan.compute_seconds},
                       {"memory", plan.memory_seconds},
                       {"network", plan.network_seconds},
                       {"kernel_starts", plan.start_seconds},
                       {"bubble", plan.bubble_seconds}};
  result["bound"] = plan.bound();
  result["skew"] = nlohmann::json::array();
  for (const auto& point : curve) {
    result["skew"].push_back({{"imbalance", point.imbalance},
                              {"total_peak_bytes", point.total_peak_bytes},
                              {"estimated_step_seconds", point.seconds}});
    if (point.passes > 0) result["skew"].back()["passes"] = point.passes;
  }
  for (std::size_t i = 0; i < stages.size() && stages.size() > 1; ++i) {
    nlohmann::json layers = nlohmann::json::array();
    for (const LayerRange& block : stages[i].layers) layers.insert(layers.end(), {block.begin, block.end});
    result["stages"].push_back({{"stage", i},
                                {"layers", layers},
                                {"per_rank", stages[i].measured["per_rank"]},
                                {"flops_per_rank", stages[i].flops},
                                {"estimated_step_seconds", stages[i].seconds()}});
  }
  result["fits"] = stages[largest_stage(stages)].cost.peak_bytes <= topology.memory_bytes;
  result["fits_up_to_imbalance"] = fits_up_to(curve, topology.memory_bytes);
  result["topology"] = topology.name;
  result["memory_bytes"] = topology.memory_bytes;
  result["version"] = SWITCHYARD_VERSION;
  return result;
}

}  // namespace switchyard
