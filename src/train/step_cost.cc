#include "train/step_cost.h"

#include "models/blocks/layers.h"
#include "moe/block.h"

namespace switchyard {

using nlohmann::json;

RankMemory rank_memory(Trainer& trainer, const StepCost& cost) {
  RankMemory memory;
  for (const auto& p : trainer.parameters().all()) {
    const auto bytes = static_cast<std::int64_t>(p.array.tensor().bytes());
    (is_away(trainer.context(), p.spec) ? memory.host_weights : memory.weights) += bytes;
    if (p.spec.trained) memory.gradients += bytes;
  }
  memory.optimizer = trainer.optimizer_bytes();
  memory.total = cost.peak_bytes;
  memory.activations =
      std::max<std::int64_t>(0, memory.total - memory.weights - memory.gradients - memory.optimizer);
  return memory;
}

json to_json(const Config& config, Trainer& trainer, const StepCost& cost) {
  json result;
  result["ranks"] = trainer.context().comm->size();
  result["mesh"] = mesh_from_config(config).to_string();
  result["parameters"] = parameter_count(parameter_specs(trainer.model()));
  const RankMemory memory = rank_memory(trainer, cost);
  result["per_rank"] = {{"weights_bytes", memory.weights},
                        {"host_weights_bytes", memory.host_weights},
                        {"gradients_bytes", memory.gradients},
                        {"optimizer_bytes", memory.optimizer},
                        {"activation_peak_bytes", memory.activations},
                        {"total_peak_bytes", memory.total},
                        {"host_offload_peak_bytes", cost.host_peak_bytes}};
  result["collectives"] = json::array();
  for (const auto& c : cost.collectives) {
    result["collectives"].push_back(
        {{"kind", c.kind}, {"axis", c.axis}, {"count", c.calls}, {"bytes", c.bytes}, {"where", c.where}});
  }
  result["host_reads"] = json::array();
  for (const auto& [what, count] : cost.host_reads.counts())
    result["host_reads"].push_back({{"what", what}, {"count", count}});
  json layers = json::array();
  for (std::int64_t i = 0; i < trainer.model().depth(); ++i) {
    const std::string prefix = fmt::format("layers.{}.", i);
    std::int64_t bytes = 0;
    for (const auto& p : trainer.parameters().all()) {
      if (p.spec.name.starts_with(prefix)) bytes += static_cast<std::int64_t>(p.array.tensor().bytes());
    }
    const auto at = static_cast<std::size_t>(i);
    layers.push_back({{"layer", i},
                      {"kind", trainer.model().layer(i).has_experts() ? "moe" : "dense"},
                      {"weights_bytes", bytes},
                      {"activation_bytes", at < cost.layer_bytes.size() ? cost.layer_bytes[at] : 0}});
  }
  result["layers"] = layers;
  return result;
}

void check_layout(const Config& config, const Mesh& mesh, const ModelConfig& model, const BatchSizes& sizes) {
  const Mesh own = stage_mesh(mesh);
  pipeline_repeats(config, mesh.axis_size("stage"));
  const auto check_rules = [&](const AxisRules& rules, std::int64_t rows) {
    for (const auto& spec : parameter_specs(model)) rules.resolve(spec.dims, spec.shape);
    if (model.moe().experts == 0) return;
    const Shape tokens{rows, sizes.sequence, model.moe_emb};
    check_chunks(model.moe_execution, local_shape(own, tokens, block_sharding(rules, tokens))[1],
                 model.moe_emb);
  };
  check_rules(AxisRules(config.axis_rules(), own), sizes.micro);
  if (!config.is_none("custom_mesh_and_rule_for_eval"))
    check_rules(AxisRules(config.axis_rules_for_eval(), own), sizes.eval);
}

}  // namespace switchyard
