#include "plan/generation_plan.h"

#include <algorithm>
#include <optional>

#include "engine/model.h"
#include "engine/session.h"
#include "generate/generator.h"
#include "plan/plan_clock.h"
#include "plan/planned_weights.h"
#include "train/abstract_rank.h"

namespace switchyard {
namespace {

std::vector<SlotTokens> texts(std::int64_t rows, std::int64_t tokens) {
  std::vector<SlotTokens> fed;
  for (std::int64_t row = 0; row < rows; ++row)
    fed.push_back(
        {static_cast<std::size_t>(row), std::vector<std::int32_t>(static_cast<std::size_t>(tokens))});
  return fed;
}

struct OnGpu {
  std::int64_t peak;  // bytes for a prompt and one more token, workspace of kernels included
  std::int64_t read_kernels, make_kernels;
};

OnGpu feed_gpu(const ModelOnMesh& of, const Topology& topology, int stage, const GenerationPlan& plan) {
  NoCosts costs;
  AbstractRank rank(of.config, of.mesh, stage, costs, WorkspaceOf::gpu, topology.ranks_per_process(), costs,
                    1, topology.gpu_major);
  const Parameters parameters = of.create(rank.context());
  Generator generator(rank.context(), of.model, parameters, plan.rows, plan.capacity);
  rank.account().reset_peak();
  const std::int64_t before = rank.gpu_kernels();
  generator.feed(texts(plan.rows, plan.prompt));
  const std::int64_t read = rank.gpu_kernels() - before;
  generator.feed(texts(plan.rows, 1));
  return {rank.account().peak(), read, rank.gpu_kernels() - before - read};
}

GenerationPlan plan_stage(const ModelOnMesh& of, const Topology& topology, int stage) {
  const Config& config = of.config;
  const ModelConfig& model = of.model;
  const Mesh& mesh = of.mesh;
  GenerationPlan plan;
  plan.rows = rows_to_generate(config, mesh);
  plan.prompt = config.get_int("max_prefill_predict_length");
  plan.capacity = config.get_int("max_target_length");
  // A default leaves room for some tokens, as for `generate`.
  if (plan.prompt >= plan.capacity && !config.is_set_by_user("max_prefill_predict_length"))
    plan.prompt = std::max<std::int64_t>(1, plan.capacity / 2);
  if (plan.prompt >= plan.capacity)
    fail_usage("[plan] max_target_length={}: expected more than max_prefill_predict_length={}", plan.capacity,
               plan.prompt);
  StepPlan costs;
  PlanClock clock(topology, model.depth(), costs);
  std::optional<OnGpu> on_gpu;
  if (topology.gpu_major > 0) on_gpu = feed_gpu(of, topology, stage, plan);
  AbstractRank rank(config, mesh, stage, clock, topology.workspace(), topology.ranks_per_process(), clock, 1,
                    topology.gpu_major);
  Context& context = rank.context();
  clock.watch(context.comm->position());
  const Parameters parameters = of.create(context);
  for (const auto& p : parameters.all()) {
    const auto bytes = static_cast<std::int64_t>(p.array.tensor().bytes());
    (is_away(context, p.spec) ? plan.host_weights : plan.weights) += bytes;
    if (is_packed(p.spec.dtype) && !is_away(context, p.spec)) plan.packed_weights += bytes;
  }
  Generator generator(context, model, parameters, plan.rows, plan.capacity,
                      !config.get_bool("enable_prefix_caching"));
  const auto feed = [&](std::int64_t tokens, StepPlan& to) {
    context.comm->reset_counts();
    context.host_reads.reset();
    clock.reset();
    generator.feed(texts(plan.rows, tokens));
    to = costs;
    to.cost.collectives = context.comm->counts();
    to.layers = layers_of(context.stage, model.layers);
  };
  feed(plan.prompt, plan.read);
  feed(1, plan.make);
  if (topology.gpu_major == 0) {
    plan.peak = rank.account().peak();
  } else {
    plan.peak = on_gpu->peak;
    plan.read.count_gpu_kernels(topology, on_gpu->read_kernels);
    plan.make.count_gpu_kernels(topology, on_gpu->make_kernels);
  }
  plan.cache = rank.account().in_use() - plan.weights;
  return plan;
}

nlohmann::json per_rank_json(const GenerationPlan& plan) {
  return {{"weights_bytes", plan.weights},
          {"packed_weights_bytes", plan.packed_weights},
          {"host_weights_bytes", plan.host_weights},
          {"cache_bytes", plan.cache},
          {"total_peak_bytes", plan.peak}};
}

}  // namespace

std::vector<GenerationPlan> plan_generation(const Config& config, const Mesh& mesh, const Topology& topology,
                                            std::vector<std::string>* notes) {
  if (config.get_bool("mtp_draft"))
    fail_usage("[plan] mtp_draft=true: drafts are not planned; set mtp_draft=false");
  if (const std::int64_t guessed = config.get_int("ngram_draft"); guessed > 0)
    fail_usage("[plan] ngram_draft={}: drafts are not planned; set ngram_draft=0", guessed);
  ModelOnMesh model(config, mesh, ModelUse::run);
  model.specs = specs_as_published(config, mesh, std::move(model.specs), &model.notes);
  require_weights_fit(model, WeightUse::run, &model.notes);
  if (notes != nullptr) *notes = model.notes;
  std::vector<GenerationPlan> stages;
  for (int stage = 0; stage < mesh.axis_size("stage"); ++stage)
    stages.push_back(plan_stage(model, topology, stage));
  return stages;
}

double seconds_of(const std::vector<GenerationPlan>& stages, StepPlan GenerationPlan::*part) {
  double seconds = 0;
  for (const GenerationPlan& stage : stages) seconds += (stage.*part).seconds();
  return seconds;
}

const GenerationPlan& largest_stage(const std::vector<GenerationPlan>& stages) {
  return *std::ranges::max_element(stages, {}, &GenerationPlan::peak);
}

nlohmann::json generation_json(const Config& config, const std::vector<GenerationPlan>& stages,
                               const Mesh& mesh, const Topology& topology) {
  const GenerationPlan &first = stages.front(), &largest = largest_stage(stages);
  const auto part = [&](StepPlan GenerationPlan::*of) {
    const StepPlan& costs = first.*of;
    return nlohmann::json{{"flops_per_rank", costs.flops},
                          {"kernels_per_rank", costs.kernels},
                          {"estimated_seconds", seconds_of(stages, of)},
                          {"seconds",
                           {{"compute", costs.compute_seconds},
                            {"memory", costs.memory_seconds},
                            {"network", costs.network_seconds},
                            {"kernel_starts", costs.start_seconds}}},
                          {"bound", costs.bound()}};
  };
  nlohmann::json json{{"ranks", mesh.size()},
                      {"mesh", mesh.to_string()},
                      {"weight_format", config.get_string("weight_format")},
                      {"rows", first.rows},
                      {"prompt_tokens", first.prompt},
                      {"cache_tokens", first.capacity},
                      {"per_rank", per_rank_json(first)},
                      {"read", part(&GenerationPlan::read)},
                      {"make", part(&GenerationPlan::make)},
                      {"fits", largest.peak <= topology.memory_bytes},
                      {"topology", topology.name},
                      {"memory_bytes", topology.memory_bytes},
                      {"version", SWITCHYARD_VERSION}};
  for (std::size_t i = 0; i < stages.size() && stages.size() > 1; ++i)
    json["stages"].push_back({{"stage", i}, {"per_rank", per_rank_json(stages[i])}});
  return json;
}

}  // namespace switchyard
