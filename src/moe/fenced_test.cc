// Tests the strategies on memory that only kernels, copies and
// collectives can reach: they give the bits that the host's memory gives.
#include "moe/dispatch/dispatch.h"
#include "ops/fenced_testing.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace autograd_test;

// y of one strategy: [B,S,M]. Inputs: x, ids, weights of the routing, wi_0, wi_1, wo.
void expect_dispatch_has_the_hosts_bits(const MoeExecution& execution, int ranks) {
  const MoeConfig config{.experts = 4, .slots = 2};
  const std::int64_t batch = 4, length = 6, width = 8, hidden = 10;
  const auto function = [&](Context& c, std::span<const Array> in) {
    const MoeWeights weights{.gate = {}, .gate_bias = {}, .wi_0 = {in[3]}, .wi_1 = {in[4]}, .wo = {in[5]}};
    const DispatchCall call{config, execution, in[0], {in[1], in[2]}, weights, in[0].sharding()};
    const auto dispatch = [&] {
      if (!execution.sparse)
        return (execution.capacity_factor > 0 ? dispatch_capacity : dispatch_dense)(c, call);
      return (ranks == 1 ? dispatch_local : execution.ring ? dispatch_ring : dispatch_all_to_all)(c, call)();
    };
    return reshard(c, dispatch().y, in[0].sharding());
  };
  const Axes experts = ranks == 1 ? Axes{} : Axes{"expert"};
  const Sharding tokens{{experts, {}, {}}, {}}, weights{{experts, {}, {}}, {}};
  expect_same_bits(
      ranks == 1 ? Mesh() : Mesh({{"expert", ranks}}), function,
      {{random_tensor({batch, length, width}, 1), {tokens}},
       {random_integers({batch, length, config.slots}, 2, 0, static_cast<int>(config.experts)), {tokens}},
       {random_tensor({batch, length, config.slots}, 3), {tokens}},
       {random_tensor({config.experts, width, hidden}, 4), {weights}},
       {random_tensor({config.experts, width, hidden}, 5), {weights}},
       {random_tensor({config.experts, hidden, width}, 6), {weights}}},
      5);
}

TEST(Fenced, SparseStrategies) {
  for (const int ranks : {1, 2}) {
    for (const bool ring : {false, true}) {
      for (const double factor : {-1.0, 0.6}) {
        for (const bool at_combine : {false, true}) {
          for (const std::int64_t chunks : {1, 2}) {
            MoeExecution execution;
            execution.ring = ring;
            execution.ragged_buffer_factor = factor;
            execution.weights_at_combine = at_combine;
            execution.emb_chunks = chunks;
            if (ranks == 1 && !ring) continue;
            expect_dispatch_has_the_hosts_bits(execution, ranks);
            execution.further_passes = factor > 0;
            if (factor > 0) expect_dispatch_has_the_hosts_bits(execution, ranks);
          }
        }
      }
    }
  }
}

TEST(Fenced, DenseStrategies) {
  for (const int ranks : {1, 2}) {
    for (const double factor : {-1.0, 1.0}) {
      MoeExecution execution;
      execution.sparse = false;
      execution.capacity_factor = factor;
      expect_dispatch_has_the_hosts_bits(execution, ranks);
    }
  }
}

}  // namespace
}  // namespace switchyard
