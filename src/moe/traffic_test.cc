// What the strategies send (moe.md §6 and §8.3): counted calls and bytes, not results.
#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

using Traffic = std::map<std::string, std::int64_t>;  // "kind axis" -> bytes sent by all ranks

Traffic traffic(const MoeConfig& config, const Mesh& mesh, bool with_backward) {
  const std::int64_t b = 8, s = 4, m = 8, h = 16, e = config.experts;
  std::vector<Traffic> of_rank(static_cast<std::size_t>(mesh.size()));
  on_mesh(mesh, [&](Context& c) {
    MoeWeights w;
    w.gate = leaf(c, random_tensor({m, e}, 1), replicated(2));
    w.wi_0 = never_save(leaf_by_rules(c, random_tensor({e, m, h}, 2), {"exp", "embed_moe", "mlp_moe"}));
    w.wi_1 = never_save(leaf_by_rules(c, random_tensor({e, m, h}, 3), {"exp", "embed_moe", "mlp_moe"}));
    w.wo = never_save(leaf_by_rules(c, random_tensor({e, h, m}, 4), {"exp", "mlp_moe", "embed_moe"}));
    const Array x = leaf_by_rules(c, random_tensor({b, s, m}, 5),
                                  {"activation_batch", "activation_norm_length", "activation_embed"});
    const Array segments =
        leaf_by_rules(c, random_integers({b, s}, 6, 1, 2), {"activation_batch", "activation_norm_length"});
    const MoeOutput out = moe_block(c, config, w, x, segments, 0, 0);
    if (with_backward) {
      const Tensor seed = block_of(mesh, c.rank, random_tensor(x.shape(), 7), dual(mesh, out.y.sharding()));
      backward(c, std::span(&out.y, 1), std::span(&seed, 1));
    }
    for (const auto& count : c.comm->counts())
      of_rank[static_cast<std::size_t>(c.rank)][count.kind + " " + count.axis] += count.bytes;
  });
  Traffic all;
  for (const auto& one : of_rank) {
    for (const auto& [name, bytes] : one) all[name] += bytes;
  }
  return all;
}

MoeConfig plain(std::int64_t slots) {
  MoeConfig config = mixtral(8, slots);
  config.balance_weight = 0;
  return config;
}

TEST(Traffic, AllToAllSendsRowsTwice) {
  const Mesh mesh({{"expert", 4}});
  Problem p{.config = plain(2)};
  const Traffic sent = traffic(p.config, mesh, false);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent.at("all_gather expert"), 4 * 3 * 8 * 4) << "the counts of 8 experts";
  // Rows that leave home carry 8 values there and back, and one weight.
  const std::int64_t bytes = sent.at("ragged_all_to_all expert");
  EXPECT_EQ(bytes % (2 * 8 * 4 + 4), 0);
  EXPECT_GT(bytes / (2 * 8 * 4 + 4), 0);
  EXPECT_LE(bytes / (2 * 8 * 4 + 4), 8 * 4 * 2) << "no more than all rows";
}

TEST(Traffic, RingSendsTokensOnceWhateverTheSlots) {
  const Mesh mesh({{"expert", 4}});
  for (std::int64_t slots : {1, 4}) {
    MoeConfig config = plain(slots);
    config.ring = true;
    const Traffic sent = traffic(config, mesh, false);
    ASSERT_EQ(sent.size(), 2u);
    EXPECT_EQ(sent.at("all_gather expert"), 32 * 3 * (8 * 4 + slots * 8)) << "tokens, ids and weights";
    EXPECT_EQ(sent.at("reduce_scatter expert"), 32 * 3 * 8 * 4);
  }
}

TEST(Traffic, CapacityMovesWeightsOrTokens) {
  const Mesh mesh({{"expert", 4}});
  MoeConfig config = plain(2);
  config.sparse = false;
  config.capacity_factor = 1;
  const Traffic weights = traffic(config, mesh, true);
  EXPECT_GT(weights.count("all_gather expert"), 0u);
  EXPECT_EQ(weights.count("all_to_all expert"), 0u);
  config.dispatch_without_expert_axes = true;
  const Traffic tokens = traffic(config, mesh, true);
  EXPECT_GT(tokens.at("all_to_all expert"), 0);
  EXPECT_EQ(tokens.count("all_gather expert"), 0u) << "no weight is gathered";
}

TEST(Traffic, OneRankSendsNothing) {
  for (const bool sparse : {false, true}) {
    MoeConfig config = plain(2);
    config.sparse = sparse;
    EXPECT_TRUE(traffic(config, Mesh(), true).empty());
  }
}

}  // namespace
}  // namespace switchyard
