// The strategies that run the experts: ring of experts (also where no axis splits the experts), ragged
// all-to-all, dense, dense with a capacity. Each takes tokens x [B,S,M] (M whole), their routing, and this
// layer's weights, and gives y [B,S,M], possibly as partial sums that the caller reduces; after several
// passes it is laid out as the call says. Adding a strategy: one file with one function of one of these
// forms, and one line in block.cc.
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

// EP = 1 and ring of experts: gather tokens and routing over the expert axes that split them, run the local
// experts on the rows routed to them, sum the partial outputs back by reduce-scatter (all-reduce where tokens
// were replicated).
Experts dispatch_ring(Context& context, const DispatchCall& call);

// Ragged all-to-all: rows travel to their experts' ranks and back.
Experts dispatch_all_to_all(Context& context, const DispatchCall& call);

// Dense with a capacity per sequence and expert.
DispatchResult dispatch_capacity(Context& context, const DispatchCall& call);

// Every expert on every token; the oracle for all others.
DispatchResult dispatch_dense(Context& context, const DispatchCall& call);

// Expert axes of the mesh (rule activation_exp), and of those the ones that also split the tokens of x.
Axes expert_axes(const Context& context, std::int64_t experts);
Axes shared_axes(const Sharding& x, const Axes& axes);

// x, or its num_moe_emb_chunks pieces of the last dim.
std::vector<Array> chunks_of(Context& context, const DispatchCall& call);

// The weights as the sparse strategies use them: experts over the expert axes, H over the axes of
// activation_mlp_moe that are not taken, every other axis gathered.
MoeWeights gather_expert_weights(Context& context, const DispatchCall& call);

// Sharding of y's partial sums: tokens as given, partial over the axes that split H or the experts.
Sharding partial_output(const Sharding& tokens, const MoeWeights& local, const Axes& also);

}  // namespace switchyard
