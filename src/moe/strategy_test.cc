// Tests that all strategies give one answer: y and every gradient equal those of the dense evaluation on one
// rank, whatever the mesh, the chunking and the routing.
#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

// Every strategy, with room for all rows.
std::vector<std::pair<std::string, MoeExecution>> strategies(std::int64_t experts) {
  std::vector<std::pair<std::string, MoeExecution>> all;
  auto add = [&](const std::string& name, auto change) {
    MoeExecution execution = with_balance_loss();
    change(execution);
    all.emplace_back(name, execution);
  };
  add("all_to_all", [](MoeExecution&) {});
  add("ring", [](MoeExecution& c) { c.ring = true; });
  add("all_to_all, weights at combine", [](MoeExecution& c) { c.weights_at_combine = true; });
  add("ring, weights at combine", [](MoeExecution& c) { c.ring = c.weights_at_combine = true; });
  add("all_to_all, 2 chunks", [](MoeExecution& c) { c.token_chunks = 2; });
  add("ring, 4 chunks", [](MoeExecution& c) { c.ring = true, c.token_chunks = 4; });
  add("all_to_all, 2 chunks of M", [](MoeExecution& c) { c.emb_chunks = 2; });
  add("ring, 4 chunks of M, 2 of tokens",
      [](MoeExecution& c) { c.ring = true, c.emb_chunks = 4, c.token_chunks = 2; });
  add("all_to_all, roomy buffer", [&](MoeExecution& c) { c.ragged_buffer_factor = 64; });
  add("ring, roomy prefix buffer", [&](MoeExecution& c) {
    c.ring = true, c.ragged_buffer_factor = 64, c.drop_policy = DropPolicy::prefix;
  });
  for (bool without : {false, true}) {
    const std::string where = without ? ", experts split" : "";
    add("dense" + where,
        [=](MoeExecution& c) { c.sparse = false, c.dispatch_without_expert_axes = without; });
    add("capacity" + where, [=](MoeExecution& c) {
      c.sparse = false, c.capacity_factor = static_cast<double>(experts),
      c.dispatch_without_expert_axes = without;
    });
  }
  return all;
}

Outcome oracle(Problem p) {
  p.execution.sparse = false;
  p.execution.capacity_factor = -1;
  return run(p, Mesh());
}

void check(const Problem& base, const std::vector<Mesh>& meshes) {
  const Outcome want = oracle(base);
  for (const Mesh& mesh : meshes) {
    for (const auto& [name, execution] : strategies(base.config.experts)) {
      Problem p = base;
      p.execution = execution;
      if (p.width % p.execution.emb_chunks != 0) continue;
      expect_same(run(p, mesh), want, 1e-5, name + " on " + mesh.to_string());
    }
  }
}

std::vector<Mesh> expert_meshes() {
  return {Mesh(), Mesh({{"expert", 2}}), Mesh({{"expert", 4}}), Mesh({{"expert", 8}})};
}
std::vector<Mesh> product_meshes() {
  return {Mesh({{"data", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 4}}),
          Mesh({{"tensor", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"tensor", 2}}),
          Mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}, {"expert", 2}})};
}

TEST(Strategies, RandomRoutingOnExpertMeshes) {
  check({.config = deepseek3(8, 3)}, expert_meshes());
}
TEST(Strategies, RandomRoutingOnProductMeshes) {
  check({.batch = 16, .config = deepseek3(8, 3)}, product_meshes());
}
TEST(Strategies, SoftmaxOverTheSelected) {
  check({.batch = 16, .config = mixtral(8, 2)}, product_meshes());
}
// A bias of wo counts once, times the routing weight, however the work is split.
TEST(Strategies, BiasesAndClampedGates) {
  check({.config = gpt_oss(8, 2)}, expert_meshes());
  check({.batch = 16, .config = gpt_oss(8, 3)}, product_meshes());
  MoeConfig plain = gpt_oss(8, 2);
  plain.gate_limit = 0;  // biases alone
  check({.batch = 2, .load = Load::empty_experts, .config = plain},
        {Mesh({{"tensor", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 4}})});
  MoeConfig unbiased = gpt_oss(8, 2);
  unbiased.expert_bias = unbiased.logit_bias = false;  // a clamp alone
  check({.load = Load::one_hot, .config = unbiased}, {Mesh({{"expert", 4}})});
}
TEST(Strategies, WeightsOnWhatExpertsTake) {
  check({.config = llama4(8, 1)}, expert_meshes());
  check({.batch = 16, .config = llama4(8, 3)}, product_meshes());
  check({.load = Load::empty_experts, .config = llama4(8, 2)},
        {Mesh({{"tensor", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 4}})});
}
TEST(Strategies, BalancedLoad) {
  check({.width = 9, .load = Load::balanced, .config = mixtral(8, 2)}, {Mesh({{"expert", 4}})});
}
TEST(Strategies, OneExpertTakesAll) {
  check({.load = Load::one_hot, .config = mixtral(8, 1)}, {Mesh({{"expert", 4}}), Mesh({{"expert", 8}})});
  check({.load = Load::one_hot, .config = mixtral(8, 2)}, {Mesh({{"data", 2}, {"expert", 2}})});
}
TEST(Strategies, EmptyExperts) {
  check({.load = Load::empty_experts, .config = deepseek3(8, 2)},
        {Mesh({{"expert", 8}}), Mesh({{"tensor", 2}, {"expert", 4}})});
}
TEST(Strategies, BatchReplicatedOverTheExpertAxes) {
  check({.batch = 1, .config = deepseek3(8, 3)},
        {Mesh({{"expert", 4}}), Mesh({{"tensor", 2}, {"expert", 2}})});
  check({.batch = 2, .config = mixtral(8, 2)},
        {Mesh({{"data", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 4}})});
}
TEST(Strategies, ChosenAtRandomWithRepeats) {
  MoeConfig config = deepseek3(8, 4);
  config.random_routing = true;
  check({.config = config}, {Mesh(), Mesh({{"expert", 4}}), Mesh({{"fsdp", 2}, {"expert", 2}})});
}

TEST(Strategies, OddShapes) {
  Chooser choose(41);
  for (int trial = 0; trial < trials(6); ++trial) {
    const std::int64_t ranks = std::int64_t{1} << choose.below(4);
    const std::int64_t experts = ranks * (1 + choose.below(3));
    Problem p{.batch = ranks * (1 + choose.below(2)),
              .length = 13,
              .width = 40,
              .hidden = 24,
              .load = choose.of(std::vector{Load::random, Load::one_hot, Load::empty_experts}),
              .config = trial % 2 == 0 ? mixtral(experts, 1 + choose.below(experts))
                                       : deepseek3(experts, 1 + choose.below(experts))};
    const Outcome want = oracle(p);
    const Mesh mesh({{"expert", static_cast<int>(ranks)}});
    for (const auto& [name, execution] : strategies(experts)) {
      p.execution = execution;
      p.execution.token_chunks = 1;  // 13 tokens have no other
      expect_same(run(p, mesh), want, 1e-5, name + " on " + mesh.to_string());
    }
  }
}

TEST(Strategies, Bfloat16StaysNearFp32) {
  const Problem exact{.batch = 4, .width = 32, .hidden = 32, .config = deepseek3(8, 3)};
  for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 4}})}) {
    for (const auto& [name, execution] : strategies(exact.config.experts)) {
      Problem p = exact;
      p.execution = execution;
      p.dtype = DType::bf16;
      const Outcome got = run(p, mesh), want = run(exact, mesh);
      for (const char* tensor : {"y", "dx", "dwi_0", "dwo"}) {
        EXPECT_TRUE(close(got.tensors.at(tensor), want.tensors.at(tensor), 3e-2)) << name << ": " << tensor;
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
