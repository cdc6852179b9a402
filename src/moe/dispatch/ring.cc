// Ring of experts (moe.md §3), and with no expert axes plain local dispatch.
//
// Steps over P ranks of a ring with T tokens each: all-gather x (T·M a rank) and the decisions (T·K), plan
// the rows whose expert is local, gather exactly those rows, experts, sum per token, reduce-scatter P·T·M
// partial sums. Work after the gathers is proportional to the rows routed here.
#include <algorithm>

#include "moe/dispatch/dispatch.h"
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

// The experts of this rank on the rows of all tokens of its ring. x: chunks of M, still split as the tokens
// are.
DispatchResult run_ring(Context& context, const DispatchCall& call, const std::vector<Array>& x,
                        const Sharding& gathered, const Axes& experts) {
  const MoeConfig& config = call.config;
  const MoeExecution& execution = call.execution;
  const Array ids = always_keep(reshard(context, call.routing.ids, gathered));
  const Array weights = always_keep(reshard(context, call.routing.weights, gathered));

  const std::int64_t here = config.experts / context.mesh->product(experts);
  const std::int64_t first = here * context.mesh->index_along(context.rank, experts);
  const std::int64_t tokens = ids.info().local[0] * ids.info().local[1];
  const std::int64_t capacity =
      buffer_rows(execution.ragged_buffer_factor, tokens, config.slots, context.mesh->product(experts));
  const RowPlan plan = plan_rows(context, ids, first, here, config.experts, capacity, execution.drop_policy);

  const auto chunk_of = [&](std::int64_t chunk) {
    const auto i = static_cast<std::size_t>(chunk);
    const Array whole = reshard(context, x[i], gathered);
    if (i + 1 < x.size()) start_reshard(context, x[i + 1], gathered);
    // The tokens of the whole ring are gathered again for backward rather than kept.
    return x[i].sharding() == gathered ? whole : never_save(whole);
  };
  const MoeWeights local = gather_expert_weights(context, call);
  const bool late = call.weighs_at_combine();
  const Array rows = expert_mlp(context, config, chunk_of, execution.emb_chunks, plan,
                                late ? Array() : gather_row_weights(context, weights, plan), local);
  ArrayInfo like = call.x.info();
  like.local = local_shape(*context.mesh, like.shape, gathered);
  const Array partial = combine_rows(context, rows, plan, like, partial_output(gathered, local, experts),
                                     late ? weights : Array());

  DispatchResult result{partial, std::vector<double>(static_cast<std::size_t>(config.experts), 0.0), experts};
  std::copy(plan.dropped.begin(), plan.dropped.end(), result.dropped.begin() + first);
  for (const auto& dim : gathered.dims)
    result.drop_axes.insert(result.drop_axes.end(), dim.begin(), dim.end());
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
  const std::vector<Array> x = chunks_of(context, call);
  start_reshard(context, x[0], gathered);
  return [=, &context] { return run_ring(context, call, x, gathered, experts); };
}

}  // namespace switchyard
