// Tests moe_dropless_fallback: where the buffer would overflow, further passes give the dropless result, and
// no rank ever holds more rows than the buffer has room for.
#include "moe/dispatch/passes.h"

#include <numeric>

#include "moe/block_testing.h"

namespace switchyard {
namespace {

using namespace moe_test;

std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t sum_of(const RowCounts& counts) {
  std::int64_t sum = 0;
  for (const auto& source : counts) sum += sum_of(source);
  return sum;
}

TEST(Passes, TakeEveryRowOnceAndNoMoreThanTheirShare) {
  Chooser choose(7);
  for (int trial = 0; trial < trials(200); ++trial) {
    const auto sources = static_cast<std::size_t>(1 + choose.below(5)),
               experts = static_cast<std::size_t>(1 + choose.below(6));
    RowCounts counts(sources, std::vector<std::int64_t>(experts));
    for (auto& source : counts) {
      for (auto& n : source) n = choose.below(3) == 0 ? 0 : choose.below(20);
    }
    const std::int64_t passes = 1 + choose.below(7), all = sum_of(counts);
    RowCounts taken(sources, std::vector<std::int64_t>(experts, 0));
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      const RowsOfPass rows = rows_of_pass(counts, pass, passes);
      EXPECT_EQ(rows.skipped, taken);
      EXPECT_LE(sum_of(rows.kept), (all + passes - 1) / passes);
      for (std::size_t s = 0; s < sources; ++s) {
        EXPECT_LE(sum_of(rows.kept[s]), (sum_of(counts[s]) + passes - 1) / passes) << "of one source";
        for (std::size_t e = 0; e < experts; ++e) taken[s][e] += rows.kept[s][e];
      }
    }
    EXPECT_EQ(taken, counts);
  }
}

TEST(Passes, OfOneSourceGoFromExpertToExpert) {
  const RowCounts counts{{3, 0, 4}};
  EXPECT_EQ(rows_of_pass(counts, 0, 2).kept, (RowCounts{{3, 0, 1}}));
  EXPECT_EQ(rows_of_pass(counts, 1, 2).skipped, (RowCounts{{3, 0, 1}}));
  EXPECT_EQ(rows_of_pass(counts, 1, 2).kept, (RowCounts{{0, 0, 3}}));
}

// Every sparse strategy.
std::vector<std::pair<std::string, MoeExecution>> strategies() {
  std::vector<std::pair<std::string, MoeExecution>> all;
  for (const bool ring : {false, true}) {
    const std::string name = ring ? "ring" : "all_to_all";
    MoeExecution execution = with_balance_loss();
    execution.ring = ring;
    all.emplace_back(name, execution);
    MoeExecution late = execution;
    late.weights_at_combine = true;
    all.emplace_back(name + ", weights at combine", late);
    MoeExecution chunks = execution;
    chunks.emb_chunks = chunks.token_chunks = 2;
    all.emplace_back(name + ", chunks", chunks);
    MoeExecution kept = execution;
    kept.keep_rows = true;
    all.emplace_back(name + ", rows kept", kept);
  }
  return all;
}

std::int64_t most_passes(const Problem& base, const std::vector<Mesh>& meshes) {
  std::int64_t most = 0;
  for (const Mesh& mesh : meshes) {
    for (const auto& [name, execution] : strategies()) {
      Problem p = base;
      p.execution = execution;
      p.policy = base.policy;
      const Outcome want = run(p, mesh);
      EXPECT_EQ(want.passes, 1);
      p.execution.further_passes = true;
      for (const double factor : {0.3, 0.5, 1.0, 64.0}) {
        p.execution.ragged_buffer_factor = factor;
        const Outcome got = run(p, mesh);
        const std::string what = fmt::format("{}, {} on {}", name, factor, mesh.to_string());
        expect_same(got, want, 1e-5, what);
        EXPECT_EQ(std::accumulate(got.dropped.begin(), got.dropped.end(), 0.0), 0) << what;
        EXPECT_EQ(got.shard_load, want.shard_load) << what;
        if (execution.token_chunks == 1) {
          EXPECT_EQ(got.passes > 1, got.shard_load > factor) << what;
        }
        most = std::max(most, got.passes);
      }
    }
  }
  return most;
}

TEST(Passes, GiveWhatTheDroplessLayerGives) {
  EXPECT_GE(most_passes({.config = deepseek3(8, 3)},
                        {Mesh(), Mesh({{"expert", 2}}), Mesh({{"expert", 4}}), Mesh({{"expert", 8}})}),
            4);
}
TEST(Passes, OnProductMeshes) {
  EXPECT_GE(most_passes({.batch = 16, .config = mixtral(8, 3)},
                        {Mesh({{"data", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"expert", 4}}),
                         Mesh({{"tensor", 2}, {"expert", 2}}), Mesh({{"fsdp", 2}, {"tensor", 2}}),
                         Mesh({{"data", 2}, {"fsdp", 2}, {"tensor", 2}, {"expert", 2}})}),
            4);
}
TEST(Passes, WhereOneRankTakesAllAndOthersNothing) {
  EXPECT_EQ(most_passes({.load = Load::one_hot, .config = mixtral(8, 1), .gaps = false},
                        {Mesh({{"expert", 4}}), Mesh({{"expert", 8}}), Mesh({{"fsdp", 2}, {"expert", 4}})}),
            32);  // a buffer of ⌊0.3·32/8⌋ rows
}
TEST(Passes, WithEmptyExpertsAndBiases) {
  most_passes({.load = Load::empty_experts, .config = gpt_oss(8, 2)},
              {Mesh({{"expert", 4}}), Mesh({{"tensor", 2}, {"expert", 2}})});
  most_passes({.load = Load::empty_experts, .config = llama4(8, 2)}, {Mesh({{"expert", 4}})});
}
TEST(Passes, WithABatchReplicatedOverTheExpertAxes) {
  most_passes({.batch = 1, .config = deepseek3(8, 3)},
              {Mesh({{"expert", 4}}), Mesh({{"tensor", 2}, {"expert", 2}})});
  most_passes({.batch = 2, .config = mixtral(8, 2)}, {Mesh({{"fsdp", 2}, {"expert", 4}})});
}
TEST(Passes, InsideARegion) {
  most_passes({.config = deepseek3(8, 3), .policy = {true, {}}}, {Mesh(), Mesh({{"expert", 4}})});
  most_passes({.config = mixtral(8, 3), .policy = {true, {"moe_mlpwi_0", "moe_mlpwo", "moe_x_sorted"}}},
              {Mesh({{"fsdp", 2}, {"expert", 2}})});
}

// Rows, not weights, are what there is much of.
Problem many_rows(bool ring) {
  Problem p{.batch = 16, .length = 32, .width = 32, .hidden = 64, .config = mixtral(4, 2), .gaps = false};
  p.execution.ring = ring;
  p.execution.balance_weight = 0;
  return p;
}

TEST(Passes, HoldNoMoreThanTheBufferWhateverTheRouting) {
  for (const bool ring : {false, true}) {
    for (const RematPolicy& policy : {RematPolicy{}, RematPolicy{true, {}, {}}}) {
      Problem p = many_rows(ring);
      // Passes make their rows again whatever the policy, so they are compared with one pass that does.
      p.policy = RematPolicy{true, {}, {}};
      p.load = Load::balanced;
      const std::int64_t balanced = std::ranges::max(run(p, Mesh({{"expert", 4}})).peak);
      p.load = Load::one_hot;
      const std::int64_t dropless = std::ranges::max(run(p, Mesh({{"expert", 4}})).peak);
      p.policy = policy;
      p.execution.further_passes = true;
      p.execution.ragged_buffer_factor = 1.25;
      const Outcome capped = run(p, Mesh({{"expert", 4}}));
      EXPECT_EQ(capped.passes, 2);  // of 2, as two experts of one rank take all
      const std::int64_t most = std::ranges::max(capped.peak);
      EXPECT_LT(static_cast<double>(most), 0.75 * static_cast<double>(dropless)) << "ring " << ring;
      EXPECT_LT(static_cast<double>(most), 1.3 * static_cast<double>(balanced)) << "ring " << ring;
    }
  }
}

TEST(Passes, OfOneRankTakeLessMemoryThanOne) {
  for (const RematPolicy& policy : {RematPolicy{}, RematPolicy{true, {}, {}}}) {
    Problem p = many_rows(false);
    p.policy = policy;
    const std::int64_t whole = run(p, Mesh()).peak[0];
    p.execution.further_passes = true;
    std::int64_t before = whole;
    for (const double factor : {0.5, 0.25}) {
      p.execution.ragged_buffer_factor = factor;
      const Outcome got = run(p, Mesh());
      EXPECT_EQ(got.passes, factor == 0.5 ? 2 : 4);
      EXPECT_LT(got.peak[0], before);
      before = got.peak[0];
    }
    EXPECT_LT(static_cast<double>(before), 0.6 * static_cast<double>(whole));
  }
}

// Where nothing is over the buffer nothing is done otherwise than without one.
TEST(Passes, CostNothingWhereNoneIsNeeded) {
  for (const bool ring : {false, true}) {
    Problem p = many_rows(ring);
    p.load = Load::balanced;
    for (const Mesh& mesh : {Mesh(), Mesh({{"expert", 4}})}) {
      const Outcome want = run(p, mesh);
      Problem capped = p;
      capped.execution.further_passes = true;
      capped.execution.ragged_buffer_factor = 1.5;
      const Outcome got = run(capped, mesh);
      EXPECT_EQ(got.passes, 1);
      for (const auto& [name, tensor] : want.tensors)
        EXPECT_TRUE(identical(got.tensors.at(name), tensor)) << name;
      EXPECT_NEAR(static_cast<double>(got.peak[0]), static_cast<double>(want.peak[0]), 4096);
    }
  }
}

}  // namespace
}  // namespace switchyard
