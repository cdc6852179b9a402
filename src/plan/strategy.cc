#include "plan/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "engine/session.h"
#include "models/blocks/layers.h"
#include "moe/dispatch/dispatch.h"

namespace switchyard {
namespace {

std::string text_of(SparseStrategy strategy) {
  switch (strategy) {
    case SparseStrategy::local:
      return "experts of each rank on the tokens that all have";
    case SparseStrategy::ring:
      return "ring of experts";
    case SparseStrategy::all_to_all:
      break;
  }
  return "ragged all-to-all";
}

// Describes how the experts of a model run, over `axes`. Tokens are laid out as between layers.
std::string experts_text(const Context& context, const ModelConfig& model, const Axes& axes) {
  const MoeExecution& execution = model.moe_execution;
  const std::int64_t ranks = context.mesh->size();
  const Sharding tokens = block_sharding(*context.rules, {ranks, ranks, model.moe_emb});
  std::string text = text_of(sparse_strategy(context, model.moe().experts, execution.ring, tokens));
  if (!execution.sparse) {
    text = execution.capacity_factor > 0
               ? fmt::format("dense, capacity factor {:g}", execution.capacity_factor)
               : "dense, every expert on every token";
    if (execution.dispatch_without_expert_axes && !axes.empty()) text += ", experts stay";
  }
  return axes.empty() || axes == Axes{"expert"} ? text : text + " over " + joined(axes);
}

}  // namespace

std::string strategy_text(const Config& config, const ModelConfig& model, const Mesh& mesh) {
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  Context context;
  context.mesh = &own;
  context.rules = &rules;
  std::vector<std::string> parts;
  if (model.moe().experts > 0 && mesh.size() > 1) {
    const Axes axes = expert_axes(context, model.moe().experts);
    if (!axes.empty() || !model.moe_execution.sparse) parts.push_back(experts_text(context, model, axes));
  }
  if (rules.sharding({"q_heads"}, {own.size()}).dims[0].contains("expert")) parts.emplace_back("EP as TP");
  const struct {
    std::vector<const char*> axes;
    const char* name;
  } kinds[] = {{{"fsdp", "fsdp_transpose"}, "FSDP"},
               {{"tensor", "tensor_sequence", "autoregressive"}, "tensor parallelism"},
               {{"context", "context_usp_ulysses", "context_autoregressive"}, "context parallelism"},
               {{"data"}, "data parallelism"},
               {{"stage"}, "pipeline"}};
  for (const auto& kind : kinds) {
    for (const char* axis : kind.axes) {
      if (mesh.axis_size(axis) == 1) continue;
      parts.emplace_back(kind.name);
      break;
    }
  }
  if (parts.empty()) return mesh.size() == 1 ? "everything on one rank" : "copies";
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace switchyard
