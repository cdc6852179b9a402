#include "plan/generation_plan.h"

#include <algorithm>

#include "generate/generator.h"
#include "models/packed_parameters.h"
#include "plan/plan_clock.h"
#include "train/abstract_rank.h"
#include "train/session.h"

namespace switchyard {
namespace {

std::vector<ParameterSpec> specs_of(const Config& config, const ModelConfig& model, const AxisRules& rules) {
  const std::vector<ParameterSpec> dense = parameter_specs(model);
  const std::string& format = config.get_string("weight_format");
  const std::optional<DType> packed = packed_dtype(format);
  if (!packed) return dense;
  std::vector<ParameterSpec> specs = packed_specs(dense, *packed, nullptr);
  for (const ParameterSpec& spec : specs) {
    if (is_packed(spec.dtype) && !splits_whole_blocks(rules, spec))
      fail_usage("[plan] weight_format={}: the mesh would cut blocks of {}", format, spec.name);
  }
  return specs;
}

std::vector<RowTokens> texts(std::int64_t rows, std::int64_t tokens) {
  std::vector<RowTokens> fed;
  for (std::int64_t row = 0; row < rows; ++row)
    fed.push_back(
        {static_cast<std::size_t>(row), std::vector<std::int32_t>(static_cast<std::size_t>(tokens))});
  return fed;
}

}  // namespace

GenerationPlan plan_generation(const Config& config, const Mesh& mesh, const Topology& topology, int stage) {
  const ModelConfig model = model_config(config);
  GenerationPlan plan;
  plan.rows = rows_to_generate(config, mesh);
  plan.prompt = config.get_int("max_prefill_predict_length");
  plan.capacity = config.get_int("max_target_length");
  if (plan.prompt >= plan.capacity)
    fail_usage("[plan] max_target_length={}: expected more than max_prefill_predict_length={}", plan.capacity,
               plan.prompt);
  StepPlan costs;
  PlanClock clock(topology, model.layers, costs);
  AbstractRank rank(config, mesh, stage, clock, topology.host, topology.ranks_per_node, clock, 1);
  Context& context = rank.context();
  clock.watch(context.comm->position());
  const auto specs = stage_specs(specs_of(config, model, rank.rules()), context.stage, model);
  const Parameters parameters = Parameters::create(context, specs, model.init_seed, nullptr, nullptr);
  for (const auto& p : parameters.all()) {
    const auto bytes = static_cast<std::int64_t>(p.array.tensor().bytes());
    plan.weights += bytes;
    if (is_packed(p.spec.dtype)) plan.packed_weights += bytes;
  }
  Generator generator(context, model, parameters, plan.rows, plan.capacity);
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
  plan.peak = rank.account().peak();
  feed(1, plan.make);
  plan.peak = std::max(plan.peak, rank.account().peak());
  plan.cache = rank.account().in_use() - plan.weights;
  return plan;
}

nlohmann::json generation_json(const Config& config, const GenerationPlan& plan, const Mesh& mesh,
                               const Topology& topology) {
  const auto part = [](const StepPlan& costs) {
    return nlohmann::json{{"flops_per_rank", costs.flops},
                          {"estimated_seconds", costs.seconds()},
                          {"seconds",
                           {{"compute", costs.compute_seconds},
                            {"memory", costs.memory_seconds},
                            {"network", costs.network_seconds}}},
                          {"bound", costs.bound()}};
  };
  return {{"ranks", mesh.size()},
          {"mesh", mesh.to_string()},
          {"weight_format", config.get_string("weight_format")},
          {"rows", plan.rows},
          {"prompt_tokens", plan.prompt},
          {"cache_tokens", plan.capacity},
          {"per_rank",
           {{"weights_bytes", plan.weights},
            {"packed_weights_bytes", plan.packed_weights},
            {"cache_bytes", plan.cache},
            {"total_peak_bytes", plan.peak}}},
          {"read", part(plan.read)},
          {"make", part(plan.make)},
          {"fits", plan.peak <= topology.memory_bytes},
          {"topology", topology.name},
          {"memory_bytes", topology.memory_bytes},
          {"version", SWITCHYARD_VERSION}};
}

}  // namespace switchyard
