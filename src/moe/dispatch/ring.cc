// Ring of experts.
//
// Steps over P ranks of a ring with T tokens each: all-gather x (T·M a rank) and the decisions (T·K), plan
// the rows whose expert is local, gather exactly those rows, experts, sum per token, reduce-scatter P·T·M
// partial sums. Work after the gathers is proportional to the rows routed here.
#include "moe/dispatch/common.h"
#include "moe/dispatch/local.h"
#include "ops/reshard.h"

namespace switchyard {

RunExperts dispatch_ring(Context& context, const DispatchCall& call) {
  const Axes ring = shared_axes(call.x.sharding(), expert_axes(context, call.config.experts));
  Sharding gathered = call.x.sharding();
  for (auto& dim : gathered.dims) {
    erase_if(dim, [&](Axis axis) { return ring.contains(axis); });
  }
  const std::vector<Array> chunks = chunks_of(context, call);
  start_reshard(context, chunks[0], gathered);
  return [=, &context] {
    const auto gather = [&](std::int64_t chunk) {
      const auto i = static_cast<std::size_t>(chunk);
      const Array whole = reshard(context, chunks[i], gathered);
      if (i + 1 < chunks.size()) start_reshard(context, chunks[i + 1], gathered);
      return never_save(whole);  // gathered again for backward rather than kept
    };
    const Array ids = always_keep(reshard(context, call.routing.ids, gathered)),
                weights = always_keep(reshard(context, call.routing.weights, gathered));
    return run_local_experts(context, call,
                             {.layout = gathered, .ids = ids, .weights = weights, .x = gather});
  };
}

}  // namespace switchyard
