// Tests that padding takes no room: whatever stands behind the tokens of a row, the layer's outputs for these
// tokens, its gradients, its balance loss, the rows that it drops and its figures stay as they are.
#include <cmath>
#include <numeric>

#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

struct NamedExecution {
  std::string name;
  MoeExecution execution;
};

// Every strategy, without and with a cap that some experts exceed.
std::vector<NamedExecution> crowded_strategies() {
  std::vector<NamedExecution> all;
  const auto add = [&](const std::string& name, auto change) {
    all.push_back({name, with_balance_loss()});
    change(all.back().execution);
  };
  for (const bool ring : {false, true}) {
    const std::string name = ring ? "ring" : "all_to_all";
    add(name, [=](MoeExecution& c) { c.ring = ring; });
    add(name + ", weights at combine", [=](MoeExecution& c) { c.ring = ring, c.weights_at_combine = true; });
    for (const double factor : {0.5, 1.1}) {
      for (const DropPolicy policy : {DropPolicy::fair, DropPolicy::prefix})
        add(fmt::format("{}, buffer {}, {}", name, factor, policy == DropPolicy::fair ? "fair" : "prefix"),
            [=](MoeExecution& c) { c.ring = ring, c.ragged_buffer_factor = factor, c.drop_policy = policy; });
      add(fmt::format("{}, passes of {}", name, factor),
          [=](MoeExecution& c) { c.ring = ring, c.ragged_buffer_factor = factor, c.further_passes = true; });
    }
  }
  for (const bool without : {false, true}) {
    const std::string where = without ? ", experts split" : "";
    for (const double factor : {-1.0, 0.6, 1.0, 2.0}) {
      add(fmt::format("dense, capacity {}{}", factor, where), [=](MoeExecution& c) {
        c.sparse = false, c.capacity_factor = factor, c.dispatch_without_expert_axes = without;
      });
    }
  }
  return all;
}

void expect_zeros_behind(const Tensor& x, const Problem& p, const std::string& what) {
  const std::int64_t width = x.dim(2);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (i / width % p.columns() >= p.length) {
      ASSERT_EQ(x.data<float>()[i], 0.0f) << what << ", element " << i;
    }
  }
}

double sum_of_rows(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}

// Returns how many runs dropped rows, or took several passes.
int check_padding(const Problem& base, const std::vector<Mesh>& meshes) {
  int crowded = 0;
  for (const Mesh& mesh : meshes) {
    for (const auto& [name, execution] : crowded_strategies()) {
      Problem p = base;
      p.execution = execution;
      const Outcome bare = run(p, mesh);
      crowded += bare.passes > 1 || sum_of_rows(bare.dropped) > 0 ? 1 : 0;
      for (const std::int64_t padding : {base.length, 7 * base.length}) {
        p.padding = padding;
        const std::string what = fmt::format("{}, {} of padding on {}", name, padding, mesh.to_string());
        const Outcome got = run(p, mesh);
        expect_same(got, bare, 1e-5, what);
        EXPECT_EQ(got.passes, bare.passes) << what;
        EXPECT_EQ(got.shard_load, bare.shard_load) << what;
        expect_zeros_behind(got.whole_y, p, what + ", y");
        expect_zeros_behind(got.whole_dx, p, what + ", dx");
      }
    }
  }
  return crowded;
}

TEST(Padding, TakesNoRoomOnExpertMeshes) {
  EXPECT_GE(
      check_padding({.config = deepseek3(8, 3)}, {Mesh(), Mesh({{"expert", 2}}), Mesh({{"expert", 4}})}), 20);
}
TEST(Padding, TakesNoRoomOnProductMeshes) {
  EXPECT_GE(check_padding({.config = mixtral(8, 2)},
                          {Mesh({{"tensor", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 2}}),
                           Mesh({{"data", 2}, {"expert", 2}})}),
            20);
}
TEST(Padding, TakesNoRoomWhereOneExpertTakesAll) {
  EXPECT_GE(check_padding({.load = Load::one_hot, .config = mixtral(8, 1)}, {Mesh({{"expert", 4}})}), 10);
}
TEST(Padding, TakesNoRoomOfATokenThatAllRanksHold) {
  check_padding({.batch = 1, .config = gpt_oss(8, 2)},
                {Mesh({{"expert", 4}}), Mesh({{"tensor", 2}, {"expert", 2}})});
}

// Where the sequence is split over ranks, padding changes which tokens they hold: dropless all the same.
TEST(Padding, TakesNoRowsOfASplitSequenceOrOfChunks) {
  for (const bool ring : {false, true}) {
    for (const Mesh& mesh :
         {Mesh({{"context", 2}}), Mesh({{"context", 2}, {"expert", 2}}), Mesh({{"expert", 2}})}) {
      Problem p{.config = deepseek3(8, 3)};
      p.execution.ring = ring;
      p.execution.token_chunks = 2;
      const Outcome bare = run(p, mesh);
      p.padding = 3 * p.length;
      expect_same(run(p, mesh), bare, 1e-5, mesh.to_string());
    }
  }
}

// A batch of nothing but padding, and one whose hidden states are not numbers where it has padding.
TEST(Padding, AloneHasNoRows) {
  for (const auto& [name, execution] : crowded_strategies()) {
    on_mesh(Mesh({{"expert", 2}}), [&](Context& c) {
      const MoeConfig config = mixtral(4, 2);
      Tensor x = random_tensor({2, 6, 8}, 1);
      x.data<float>()[9] = NAN;
      const auto leaf_of = [&](const Tensor& t, const std::vector<std::string>& names) {
        return leaf_by_rules(c, t, names, true, DType::f32);
      };
      MoeWeights w;
      w.gate.weight = leaf_of(random_tensor({8, 4}, 2), {"embed", ""});
      w.wi_0.weight = leaf_of(random_tensor({4, 8, 8}, 3), {"exp", "embed_moe", "mlp_moe"});
      w.wi_1.weight = leaf_of(random_tensor({4, 8, 8}, 4), {"exp", "embed_moe", "mlp_moe"});
      w.wo.weight = leaf_of(random_tensor({4, 8, 8}, 5), {"exp", "mlp_moe", "embed_moe"});
      const Array in = leaf_of(x, {"activation_batch", "activation_norm_length", "activation_embed"});
      const Array segments =
          leaf_by_rules(c, Tensor::zeros(DType::i32, {2, 6}), {"activation_batch", "activation_norm_length"});
      MoeOutput out = moe_block(c, config, execution, w, in, segments, 0, 0);
      read_loads(c, std::span(&out.load, 1));
      EXPECT_EQ(sum_of_rows(out.load.rows), 0) << name;
      EXPECT_EQ(sum_of_rows(out.load.dropped), 0) << name;
      EXPECT_EQ(out.load.shard_load, 0) << name;
      EXPECT_EQ(out.load.passes, 1) << name;
      EXPECT_EQ(out.balance_loss.tensor().data<float>()[0], 0.0f) << name;
      if (!execution.sparse && execution.capacity_factor <= 0) return;  // multiplies every token, by zeros
      for (const float y : out.y.tensor().span<float>()) EXPECT_EQ(y, 0.0f) << name;
    });
  }
}

// As the reference has it.
TEST(Padding, ChoosesExpertsWhereItCounts) {
  Problem p{.config = mixtral(8, 2)};
  p.execution.balance.count_padding = true;
  p.padding = 4;
  const Outcome got = run(p, Mesh({{"expert", 2}}));
  EXPECT_EQ(sum_of_rows(got.rows), 8 * 8 * 2);
}

}  // namespace
}  // namespace switchyard
