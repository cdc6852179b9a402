#include "moe/dispatch/local.h"

#include <algorithm>
#include <numeric>

#include "moe/combine_gradient.h"
#include "moe/dispatch/common.h"
#include "moe/dispatch/passes.h"

namespace switchyard {
namespace {

// The experts on this rank.
struct ExpertsHere {
  Axes axes;  // that split the experts
  std::int64_t first, count;
};

DispatchResult run_rows(Context& context, const DispatchCall& call, const TokensHere& tokens,
                        const ExpertsHere& here, const RowPlan& plan) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  const auto chunk_of = [&](std::int64_t chunk) {
    const Array x = tokens.x(chunk);
    return execution.keep_rows ? checkpoint_name(rows_of_tokens(context, x, plan), "moe_x_sorted") : x;
  };
  RowPlan of_rows;  // which are sorted by expert already
  of_rows.sizes = plan.sizes;
  const MoeWeights local = gather_expert_weights(context, call);
  const bool late = call.weighs_at_combine();
  const Array rows =
      expert_mlp(context, config, chunk_of, execution.emb_chunks, execution.keep_rows ? of_rows : plan,
                 late ? Array() : gather_row_weights(context, tokens.weights, plan), local);
  ArrayInfo like = call.x.info();
  like.local = local_shape(*context.mesh, like.shape, tokens.layout);
  Array partial = combine_rows(context, rows, plan, like, partial_output(tokens.layout, local, here.axes),
                               late ? tokens.weights : Array());
  if (execution.combine_gradient_bound && !here.axes.empty())
    partial = round_gradient(context, partial, *execution.combine_gradient_bound);

  DispatchResult result{partial, std::vector<double>(static_cast<std::size_t>(config.experts), 0.0),
                        here.axes};
  std::copy(plan.dropped.begin(), plan.dropped.end(), result.dropped.begin() + here.first);
  for (const auto& dim : tokens.layout.dims)
    result.drop_axes.insert(result.drop_axes.end(), dim.begin(), dim.end());
  return result;
}

// Nothing is dropped: rows over the cap wait for a further pass.
DispatchResult run_all_rows(Context& context, const DispatchCall& call, const TokensHere& tokens,
                            const ExpertsHere& here) {
  const std::int64_t experts = call.config.experts;
  const std::vector<std::int64_t> counts =
      read_rows_per_expert(context, tokens.ids, here.first, here.count, experts);
  const std::int64_t assigned = std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
                     ranks = experts / here.count;
  std::int64_t most = 0;
  for (auto rank = counts.begin(); rank != counts.end(); rank += here.count)
    most = std::max(most, std::accumulate(rank, rank + here.count, std::int64_t{0}));
  const std::int64_t passes = agree_on_passes(context, most, cap_of_passes(call.execution, assigned, ranks),
                                              tokens.layout, here.axes);
  const std::vector<std::int64_t> mine(counts.begin() + here.first, counts.begin() + here.first + here.count);
  const auto run = [&](std::int64_t pass) {
    const RowsOfPass rows = rows_of_pass(RowCounts{mine}, pass, passes);
    const Array skipped = passes == 1 ? Array() : host_indices(context, rows.skipped[0]);
    const std::int64_t count = std::accumulate(rows.kept[0].begin(), rows.kept[0].end(), std::int64_t{0});
    return run_rows(
        context, call, tokens, here,
        plan_kept_rows(context, tokens.ids, here.first, host_indices(context, rows.kept[0]), count, skipped));
  };
  DispatchResult result = passes == 1 ? run(0) : run_passes(context, passes, call.layout, run);
  result.shard_load =
      over_balanced_share(std::accumulate(mine.begin(), mine.end(), std::int64_t{0}), assigned, ranks);
  return result;
}

}  // namespace

DispatchResult run_local_experts(Context& context, const DispatchCall& call, const TokensHere& tokens) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  const Axes axes = expert_axes(context, config.experts);
  const int ranks = context.mesh->product(axes);
  const std::int64_t count = config.experts / ranks;
  const ExpertsHere here{axes, count * context.mesh->index_along(context.rank, axes), count};
  if (may_need_passes(execution, ranks)) return run_all_rows(context, call, tokens, here);
  const RowPlan plan =
      plan_rows(context, tokens.ids, here.first, here.count, config.experts,
                execution.further_passes ? -1 : execution.ragged_buffer_factor, execution.drop_policy);
  DispatchResult result = run_rows(context, call, tokens, here, plan);
  result.shard_load = over_balanced_share(plan.routed, plan.assigned, ranks);
  return result;
}

RunExperts dispatch_local(Context& context, const DispatchCall& call) {
  return [=, &context] {
    const std::vector<Array> x = chunks_of(context, call);
    return run_local_experts(context, call,
                             {.layout = call.x.sharding(),
                              .ids = always_keep(call.routing.ids),
                              .weights = always_keep(call.routing.weights),
                              .x = [&](std::int64_t chunk) { return x[static_cast<std::size_t>(chunk)]; }});
  };
}

}  // namespace switchyard
