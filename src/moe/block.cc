#include "moe/block.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "moe/balance.h"
#include "moe/dispatch/common.h"
#include "moe/router.h"
#include "moe/routing_tape.h"
#include "ops/basic.h"
#include "ops/reshard.h"
#include "ops/row_adapters.h"

namespace switchyard {

SparseStrategy sparse_strategy(const Context& context, std::int64_t experts, bool ring, const Sharding& x) {
  const Axes axes = expert_axes(context, experts), split = shared_axes(x, axes);
  if (split.empty()) return SparseStrategy::local;
  return ring || split != axes ? SparseStrategy::ring : SparseStrategy::all_to_all;
}

namespace {

RunExperts dispatch(Context& context, const DispatchCall& call) {
  switch (sparse_strategy(context, call.config.experts, call.execution.ring, call.x.sharding())) {
    case SparseStrategy::local:
      return dispatch_local(context, call);
    case SparseStrategy::ring:
      return dispatch_ring(context, call);
    case SparseStrategy::all_to_all:
      break;
  }
  return dispatch_all_to_all(context, call);
}

DispatchResult run_dense(Context& context, const DispatchCall& call) {
  return (call.execution.capacity_factor > 0 ? dispatch_capacity : dispatch_dense)(context, call);
}

// False on ranks that only repeat what another rank holds: those off the origin of an axis not in `axes`.
bool first_of_repeats(const Context& context, const Axes& axes) {
  for (const auto& axis : context.mesh->axes()) {
    if (!axes.contains(axis.axis) && context.mesh->coordinate(context.rank, axis.axis) != 0) return false;
  }
  return true;
}

// y laid out as the call says, so that partial sums over an axis that splits M
// are scattered, not added everywhere.
DispatchResult in_chunks(Context& context, const DispatchCall& call) {
  const Sharding& want = call.layout;
  auto reduced = [&](DispatchResult r) {
    r.y = reshard(context, r.y, want);
    return r;
  };
  if (!call.execution.sparse) return reduced(run_dense(context, call));
  const std::int64_t n = call.execution.token_chunks;
  if (n <= 1) return reduced(dispatch(context, call)());
  const auto x = chunk_sequence(context, call.x, n);
  const auto ids = chunk_sequence(context, call.routing.ids, n),
             weights = chunk_sequence(context, call.routing.weights, n);
  DispatchResult all;
  std::vector<Array> parts;
  const auto dispatched = [&](std::size_t i) {
    return dispatch(context, {call.config,
                              call.execution,
                              x[i],
                              {always_keep(ids[i]), always_keep(weights[i])},
                              call.weights,
                              want});
  };
  RunExperts next;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const RunExperts experts = next ? std::exchange(next, nullptr) : dispatched(i);
    // The next chunk's tokens leave before this one's experts compute.
    if (context.ahead != nullptr && i + 1 < x.size()) next = dispatched(i + 1);
    DispatchResult part = experts();
    parts.push_back(reshard(context, part.y, want));
    if (i == 0) {
      all = part;
      continue;
    }
    std::transform(part.dropped.begin(), part.dropped.end(), all.dropped.begin(), all.dropped.begin(),
                   std::plus<>());
    all.passes = std::max(all.passes, part.passes);
    all.shard_load = std::max(all.shard_load, part.shard_load);
  }
  all.y = concat_sequence(context, parts);
  return all;
}

// Parts of a sequence of `length` tokens that MaxText runs a layer in where its buffer would overflow: so
// many that a part needs no larger buffer dropless.
std::int64_t parts_of_overflow(const Context& context, const MoeConfig& config, const MoeExecution& execution,
                               std::int64_t length) {
  const double ranks = context.mesh->product(expert_axes(context, config.experts));
  auto parts = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(execution.token_chunks) * ranks / execution.ragged_buffer_factor));
  parts = std::min(parts, length);
  while (length % parts != 0) ++parts;
  return parts;
}

// The numbers of the tokens' adapters, where the experts have several (LowRank).
const LowRank* several_adapters(const MoeWeights& weights) {
  for (const Linear* const of : {&weights.wi_0, &weights.wi_1, &weights.wo}) {
    if (of->adapter && of->adapter->count > 0) return &*of->adapter;
  }
  return nullptr;
}

// Runs the experts. Where they have several adapters, each expert is dispatched in parts, one for each number
// of an adapter: so the rows of one adapter stand together wherever they travel.
DispatchResult run_experts(Context& context, const MoeConfig& config, const MoeExecution& execution,
                           const Array& x, const Routing& routing, const MoeWeights& weights,
                           const Sharding& layout) {
  const LowRank* const adapters = several_adapters(weights);
  if (adapters == nullptr) return in_chunks(context, {config, execution, x, routing, weights, layout});
  const std::int64_t numbers = adapters->count + 1;
  MoeConfig parted = config;
  parted.experts *= numbers;
  CHECK(execution.sparse && expert_axes(context, parted.experts) == expert_axes(context, config.experts),
        "several adapters for {} experts", config.experts);
  const Array parts = always_keep(part_experts(context, routing.ids, adapters->numbers, numbers));
  DispatchResult result =
      in_chunks(context, {parted, execution, x, {parts, routing.weights}, weights, layout});
  std::vector<double> dropped(static_cast<std::size_t>(config.experts), 0.0);
  for (std::size_t i = 0; i < result.dropped.size(); ++i)
    dropped[i / static_cast<std::size_t>(numbers)] += result.dropped[i];
  result.dropped = std::move(dropped);
  return result;
}

}  // namespace

bool is_first_of_repeats(const Context& context, const Sharding& tokens) {
  Axes axes = tokens.dims[0];
  axes.insert(axes.end(), tokens.dims[1].begin(), tokens.dims[1].end());
  return first_of_repeats(context, axes);
}

void check_chunks(const MoeExecution& execution, std::int64_t length, std::int64_t width) {
  if (!execution.sparse) return;
  if (length % execution.token_chunks != 0)
    fail_usage(
        "[moe] expected num_moe_token_chunks to divide the {} tokens of a sequence on one rank, got {}",
        length, execution.token_chunks);
  if (width % execution.emb_chunks != 0)
    fail_usage("[moe] expected num_moe_emb_chunks to divide the {} columns of a token, got {}", width,
               execution.emb_chunks);
}

MoeOutput moe_block(Context& context, const MoeConfig& config, const MoeExecution& execution,
                    const MoeWeights& weights, const Array& x_in, const Array& segments, std::int64_t step,
                    std::int64_t layer, std::int64_t first_row) {
  const Sharding tokens{{x_in.sharding().dims[0], x_in.sharding().dims[1], {}}, {}};
  const Array x = reshard(context, x_in, tokens);
  check_chunks(execution, x.info().local[1], x.shape()[2]);
  MoeOutput out;
  out.logits = gate_logits(context, execution, x, weights);
  const Array bias = weights.gate_bias.defined() ? replicate(context, weights.gate_bias) : Array();
  const Tensor replayed =
      execution.tape ? execution.tape->replay(context, step, layer, first_row, out.logits.info()) : Tensor();
  const Array local_segments = reshard(context, segments, Sharding{{tokens.dims[0], tokens.dims[1]}, {}});
  out.routing = route(context, config, out.logits, bias, step, layer, first_row, replayed,
                      execution.balance.count_padding ? Tensor() : local_segments.tensor());
  if (execution.tape) execution.tape->record(context, step, layer, first_row, out.logits, bias, out.routing);
  DispatchResult result;
  {
    const PhaseMark mark(context.comm->position(), "dispatch");
    result = run_experts(context, config, execution, x, out.routing, weights, x_in.sharding());
  }
  out.y = result.y;
  if (execution.balance_weight > 0) {
    MoeExecution as_run = execution;
    if (execution.balance.by_parts && result.passes > 1)
      as_run.token_chunks = parts_of_overflow(context, config, execution, x.info().local[1]);
    out.balance_loss = balance_loss(context, config, as_run, out.logits, bias, out.routing, local_segments);
  }

  out.load.layer = layer;
  out.load.passes = result.passes;
  out.load.shard_load = result.shard_load;
  out.load.rows.assign(static_cast<std::size_t>(config.experts), 0.0);
  out.load.dropped = std::move(result.dropped);
  if (is_first_of_repeats(context, tokens))
    out.load.counted =
        count_rows(context, config, execution, out.routing.ids.tensor(), local_segments.tensor());
  if (!first_of_repeats(context, result.drop_axes))
    std::fill(out.load.dropped.begin(), out.load.dropped.end(), 0.0);
  return out;
}

}  // namespace switchyard
