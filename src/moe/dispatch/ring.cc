// Ring of experts, and with no expert axes plain local dispatch.
//
// Steps over P ranks of a ring with T tokens each: all-gather x (T·M a rank) and the decisions (T·K), plan
// the rows whose expert is local, gather exactly those rows, experts, sum per token, reduce-scatter P·T·M
// partial sums. Work after the gathers is proportional to the rows routed here.
#include <algorithm>
#include <numeric>

#include "moe/combine_gradient.h"
#include "moe/dispatch/passes.h"
#include "moe/expert_mlp.h"
#include "ops/basic.h"
#include "ops/reshard.h"

namespace switchyard {

Axes expert_axes(const Context& context, std::int64_t experts) {
  return context.rules->sharding({"activation_exp"}, {experts}).dims[0];
}

Axes shared_axes(const Sharding& x, const Axes& axes) {
  Axes shared;
  for (const Axis axis : axes) {
    if (x.dims[0].contains(axis) || x.dims[1].contains(axis)) shared.push_back(axis);
  }
  return shared;
}

std::vector<Array> chunks_of(Context& context, const DispatchCall& call) {
  if (call.execution.emb_chunks == 1) return {call.x};
  return chunk_last(context, call.x, call.execution.emb_chunks);
}

MoeWeights gather_expert_weights(Context& context, const DispatchCall& call) {
  const Axes experts = expert_axes(context, call.config.experts);
  Axes hidden = context.rules->sharding({"", "activation_mlp_moe"}, {1, call.weights.wo.shape()[1]}).dims[1];
  // An axis that splits experts or tokens cannot split H too.
  const Axes of_tokens = shared_axes(call.x.sharding(), hidden);
  erase_if(hidden, [&](Axis axis) { return experts.contains(axis) || of_tokens.contains(axis); });
  MoeWeights local = call.weights;
  local.wi_0 = reshard(context, call.weights.wi_0, Sharding{{experts, {}, hidden}, {}});
  local.wi_1 = reshard(context, call.weights.wi_1, Sharding{{experts, {}, hidden}, {}});
  local.wo = reshard(context, call.weights.wo, Sharding{{experts, hidden, {}}, {}});
  if (call.config.expert_bias) {
    local.wi_0_bias = reshard(context, call.weights.wi_0_bias, Sharding{{experts, hidden}, {}});
    local.wi_1_bias = reshard(context, call.weights.wi_1_bias, Sharding{{experts, hidden}, {}});
    local.wo_bias = reshard(context, call.weights.wo_bias, Sharding{{experts, {}}, {}});
  }
  return local;
}

Sharding partial_output(const Sharding& tokens, const MoeWeights& local, const Axes& also) {
  Sharding result = tokens;
  result.partial = also;
  const Axes& hidden = local.wi_0.sharding().dims[2];
  result.partial.insert(result.partial.end(), hidden.begin(), hidden.end());
  return result;
}

namespace {

// A ring's tokens, and the experts of this rank.
struct Ring {
  std::vector<Array> x;  // chunks of M, still split as the tokens are
  Sharding gathered;     // of tokens
  Axes experts;
  Array ids = {}, weights = {};      // of all tokens of the ring
  std::int64_t first = 0, here = 0;  // experts
};

DispatchResult run_rows(Context& context, const DispatchCall& call, const Ring& ring, const RowPlan& plan) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  const auto chunk_of = [&](std::int64_t chunk) {
    const auto i = static_cast<std::size_t>(chunk);
    const Array& x = ring.x[i];
    const Array whole = reshard(context, x, ring.gathered);
    if (i + 1 < ring.x.size()) start_reshard(context, ring.x[i + 1], ring.gathered);
    // The tokens of the whole ring are gathered again for backward rather than kept.
    if (x.sharding() != ring.gathered) never_save(whole);
    return execution.keep_rows ? checkpoint_name(rows_of_tokens(context, whole, plan), "moe_x_sorted")
                               : whole;
  };
  RowPlan of_rows;  // which are sorted by expert already
  of_rows.sizes = plan.sizes;
  const MoeWeights local = gather_expert_weights(context, call);
  const bool late = call.weighs_at_combine();
  const Array rows =
      expert_mlp(context, config, chunk_of, execution.emb_chunks, execution.keep_rows ? of_rows : plan,
                 late ? Array() : gather_row_weights(context, ring.weights, plan), local);
  ArrayInfo like = call.x.info();
  like.local = local_shape(*context.mesh, like.shape, ring.gathered);
  Array partial = combine_rows(context, rows, plan, like, partial_output(ring.gathered, local, ring.experts),
                               late ? ring.weights : Array());
  if (execution.combine_gradient_bound && !ring.experts.empty())
    partial = round_gradient(context, partial, *execution.combine_gradient_bound);

  DispatchResult result{partial, std::vector<double>(static_cast<std::size_t>(config.experts), 0.0),
                        ring.experts};
  std::copy(plan.dropped.begin(), plan.dropped.end(), result.dropped.begin() + ring.first);
  for (const auto& dim : ring.gathered.dims)
    result.drop_axes.insert(result.drop_axes.end(), dim.begin(), dim.end());
  return result;
}

// Nothing is dropped: rows over the cap wait for a further pass.
DispatchResult run_all_rows(Context& context, const DispatchCall& call, const Ring& ring, std::int64_t cap) {
  const std::int64_t experts = call.config.experts;
  const std::vector<std::int64_t> counts =
      read_rows_per_expert(context, ring.ids, ring.first, ring.here, experts);
  std::int64_t most = 0;
  for (auto rank = counts.begin(); rank != counts.end(); rank += ring.here)
    most = std::max(most, std::accumulate(rank, rank + ring.here, std::int64_t{0}));
  const std::int64_t passes = agree_on_passes(context, most, cap, ring.gathered, ring.experts);
  const std::vector<std::int64_t> mine(counts.begin() + ring.first, counts.begin() + ring.first + ring.here);
  const auto run = [&](std::int64_t pass) {
    const RowsOfPass rows = rows_of_pass(RowCounts{mine}, pass, passes);
    const Array skipped = passes == 1 ? Array() : host_indices(context, rows.skipped[0]);
    const std::int64_t count = std::accumulate(rows.kept[0].begin(), rows.kept[0].end(), std::int64_t{0});
    return run_rows(
        context, call, ring,
        plan_kept_rows(context, ring.ids, ring.first, host_indices(context, rows.kept[0]), count, skipped));
  };
  DispatchResult result = passes == 1 ? run(0) : run_passes(context, passes, call.layout, run);
  result.shard_load = static_cast<double>(std::accumulate(mine.begin(), mine.end(), std::int64_t{0}));
  return result;
}

DispatchResult run_ring(Context& context, const DispatchCall& call, Ring ring) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  ring.ids = always_keep(reshard(context, call.routing.ids, ring.gathered));
  ring.weights = always_keep(reshard(context, call.routing.weights, ring.gathered));

  const int ranks = context.mesh->product(ring.experts);
  ring.here = config.experts / ranks;
  ring.first = ring.here * context.mesh->index_along(context.rank, ring.experts);
  const std::int64_t tokens = ring.ids.info().local[0] * ring.ids.info().local[1];
  DispatchResult result;
  if (const std::int64_t cap = cap_of_passes(execution, tokens, config.slots, ranks); cap > 0) {
    result = run_all_rows(context, call, ring, cap);
  } else {
    const std::int64_t capacity =
        execution.further_passes ? -1
                                 : buffer_rows(execution.ragged_buffer_factor, tokens, config.slots, ranks);
    const RowPlan plan =
        plan_rows(context, ring.ids, ring.first, ring.here, config.experts, capacity, execution.drop_policy,
                  call.routing.all_used);
    result = run_rows(context, call, ring, plan);
    result.shard_load = static_cast<double>(plan.routed);
  }
  result.shard_load *= static_cast<double>(ranks) / static_cast<double>(tokens * config.slots);
  return result;
}

}  // namespace

Experts dispatch_ring(Context& context, const DispatchCall& call) {
  const MoeConfig& config = call.config;
  const Axes experts = expert_axes(context, config.experts);
  const Axes ring = shared_axes(call.x.sharding(), experts);
  Sharding gathered = call.x.sharding();
  for (auto& dim : gathered.dims) {
    erase_if(dim, [&](Axis axis) { return ring.contains(axis); });
  }
  const Ring tokens{.x = chunks_of(context, call), .gathered = gathered, .experts = experts};
  start_reshard(context, tokens.x[0], gathered);
  return [=, &context] { return run_ring(context, call, tokens); };
}

}  // namespace switchyard
