// The five ways to run the experts, a function each: local, ring, all-to-all, dense, capacity. Each takes
// tokens x [B,S,M] (M whole), their routing, and this layer's weights, and gives y [B,S,M], possibly as
// partial sums that the caller reduces; after several passes y is laid out as the call says. block.cc decides
// which one runs. A new strategy is a file with one function of one of these forms, and a line there.
#pragma once

#include <functional>

#include "autograd/context.h"
#include "moe/moe.h"

namespace switchyard {

struct DispatchResult {
  Array y;                      // [B,S,M]
  std::vector<double> dropped;  // rows dropped, per expert (E)
  Axes drop_axes;               // axes over which `dropped` differs between ranks; over others it repeats
  double shard_load = 0;  // rows for this rank's experts, dropped ones too, over the balanced share; 0: dense
  std::int64_t passes = 1;  // through the experts (moe/dispatch/passes.h)
};

struct DispatchCall {
  const MoeConfig& config;
  const MoeExecution& execution;
  Array x;
  Routing routing;
  const MoeWeights& weights;
  Sharding layout;  // of y, once what the strategy leaves as partial sums is reduced

  // Weights of what experts take cannot wait for what they give.
  bool weighs_at_combine() const { return execution.weights_at_combine && !config.weights_on_inputs; }
};

// The second half of a sparse strategy: the experts, and the way back. The first half sends tokens or rows to
// the experts; where gathers are started ahead (Context::ahead) it only starts that, and another chunk may
// compute meanwhile. Refers to the config, the execution and the weights of its call.
using Experts = std::function<DispatchResult()>;

// No exchange of tokens, where all ranks along the expert axes have the same ones, or there are no such axes:
// run this rank's experts on the rows routed to them. y is a partial sum over the expert axes.
Experts dispatch_local(Context& context, const DispatchCall& call);

// Ring of experts: gather tokens and routing over the expert axes that split them, run the local experts on
// the rows routed to them, sum the partial outputs back by reduce-scatter (all-reduce along axes that did not
// split them).
Experts dispatch_ring(Context& context, const DispatchCall& call);

// Ragged all-to-all: rows travel to their experts' ranks and back. The expert axes all split the tokens
// (CHECKed).
Experts dispatch_all_to_all(Context& context, const DispatchCall& call);

// Every expert on every token; the reference for all others.
DispatchResult dispatch_dense(Context& context, const DispatchCall& call);

// Dense with a capacity per sequence and expert.
DispatchResult dispatch_capacity(Context& context, const DispatchCall& call);

}  // namespace switchyard
