// The five strategies for running the experts, one function each: local, ring, all-to-all, dense, capacity.
// Each takes tokens x [B,S,M] (M whole), their routing and this layer's weights, and returns y [B,S,M], maybe
// as partial sums that the caller reduces; after several passes y is in the call's layout. block.cc decides
// which one runs. A new strategy is a new file with a function of one of these forms, and a line in block.cc.
//
// The layouts of a layer on a mesh with F ranks along fsdp and P along expert:
//
//             tokens before   at the experts                       weights     sum over expert
// local       [B/F, S, M]     [B/F, S, M], alike along expert      [E/P, M, H] all-reduce
// ring        [B/(FP), S, M]  [B/F, S, M], gathered over expert    [E/P, M, H] reduce-scatter
// all_to_all  [B/(FP), S, M]  [R, M], rows that chose its experts  [E/P, M, H] none: rows come home
// dense       [B/(FP), S, M]  [E, B/(FP), S, M], all experts       [E, M, H]   none
// capacity    [B/(FP), S, M]  [E, B/(FP), C, M], C places          [E, M, H]   none
//
// All gather before the experts what fsdp splits of a weight. Where expert is a tensor axis outside of the
// experts, x is alike along expert: local. With moe_dispatch_no_expert_sharding the dense strategies keep E/P
// experts a rank, and tokens are as in local.
#pragma once

#include <cstdint>
#include <functional>

#include "autograd/context.h"
#include "moe/moe.h"

namespace switchyard {

struct DispatchResult {
  Array y;                      // [B,S,M]
  std::vector<double> dropped;  // rows dropped, per expert (E)
  Axes drop_axes;               // axes over which `dropped` differs between ranks; it repeats over others
  double shard_load = 0;  // rows for this rank's experts, dropped ones too, over the balanced share; 0: dense
  std::int64_t passes = 1;  // passes through the experts (moe/dispatch/passes.h)
};

struct DispatchCall {
  const MoeConfig& config;
  const MoeExecution& execution;
  Array x;
  Routing routing;
  const MoeWeights& weights;
  Sharding layout;  // layout of y after partial sums are reduced

  // True when weights apply at combine. Weights on the experts' inputs cannot wait until then.
  bool weighs_at_combine() const { return execution.weights_at_combine && !config.weights_on_inputs; }
};

// The second half of a sparse strategy: the experts, and the way back. The first half sends tokens or rows to
// the experts; with prefetch (Context::ahead) it only starts the transfer, and another chunk may compute
// meanwhile. RunExperts refers to the config, the execution and the weights of its call.
using RunExperts = std::function<DispatchResult()>;

// The sparse strategies, and which of them runs for tokens laid out as x [B,S,M]: tokens stay where every
// rank along the expert axes has the same ones. A ring gathers over any axes that split tokens. Rows can
// travel to their experts only if all expert axes split tokens.
enum class SparseStrategy : std::uint8_t { local, ring, all_to_all };
SparseStrategy sparse_strategy(const Context& context, std::int64_t experts, bool ring, const Sharding& x);

// Moves no tokens: all ranks along the expert axes hold the same tokens, or there are no such axes. Runs this
// rank's experts on the rows routed to them. y is a partial sum over the expert axes.
RunExperts dispatch_local(Context& context, const DispatchCall& call);

// Ring of experts: gathers tokens and routing over the expert axes that split them,
// runs the local experts on the rows routed to them, and sums the partial outputs
// by reduce-scatter (by all-reduce along axes that did not split the tokens).
RunExperts dispatch_ring(Context& context, const DispatchCall& call);

// Ragged all-to-all: rows travel to their experts' ranks and
// back. All expert axes must split the tokens (CHECKed).
RunExperts dispatch_all_to_all(Context& context, const DispatchCall& call);

// Runs every expert on every token; the reference implementation for all other strategies.
DispatchResult dispatch_dense(Context& context, const DispatchCall& call);

// The dense strategy with a capacity for each sequence and expert.
DispatchResult dispatch_capacity(Context& context, const DispatchCall& call);

}  // namespace switchyard
