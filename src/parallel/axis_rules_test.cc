#include "parallel/axis_rules.h"

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include "core/error.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using Names = std::vector<std::string>;

std::vector<AxisRule> rules_of(const std::string& file) {
  std::vector<AxisRule> rules;
  for (const YAML::Node& row : YAML::LoadFile(std::string(kSourceFolder) + file)["logical_axis_rules"]) {
    rules.push_back({row[0].as<std::string>(), {}});
    if (row[1].IsScalar())
      rules.back().axes = {row[1].as<std::string>()};
    else
      rules.back().axes = row[1].as<Names>();
  }
  return rules;
}

class DefaultRules : public testing::Test {
 protected:
  AxisRules on(const Mesh& mesh) const { return AxisRules(rules_, mesh); }
  std::string resolve(const Mesh& mesh, const Names& dims, const Shape& shape) const {
    return to_string(on(mesh).resolve(dims, shape).sharding);
  }
  const std::vector<AxisRule> rules_ = rules_of("/configs/base.yml");
};

const Mesh kFsdpTensor({{"data", 2}, {"fsdp", 4}, {"tensor", 2}});
const Mesh kFsdpExpert({{"data", 1}, {"fsdp", 2}, {"expert", 4}});

TEST_F(DefaultRules, TensorParallelismKeepsItsDimAndFsdpTakesTheOther) {
  EXPECT_EQ(resolve(kFsdpTensor, {"embed", "mlp"}, {64, 128}), "[fsdp, tensor]");
  EXPECT_EQ(resolve(kFsdpTensor, {"mlp", "embed"}, {128, 64}), "[tensor, fsdp]");
  EXPECT_EQ(resolve(kFsdpTensor, {"exp", "embed_moe", "mlp_moe"}, {8, 64, 128}), "[-, fsdp, tensor]");
  EXPECT_EQ(resolve(kFsdpTensor, {"embed", "q_heads", "kv"}, {64, 8, 16}), "[fsdp, tensor, -]");
  EXPECT_EQ(resolve(kFsdpTensor, {"vocab", "embed_vocab"}, {512, 64}), "[tensor, fsdp]");
}

TEST_F(DefaultRules, BatchTakesTheExpertAxisBeforeExperts) {
  const Names dispatched{"activation_exp", "activation_batch_moe", "", "activation_embed_moe"};
  EXPECT_EQ(resolve(kFsdpExpert, dispatched, {8, 16, 4, 64}), "[-, fsdp+expert, -, -]");
  const Names no_batch{"activation_exp", "", "", "activation_embed_moe"};
  EXPECT_EQ(resolve(kFsdpExpert, no_batch, {8, 16, 4, 64}), "[expert, -, -, -]");
}

TEST_F(DefaultRules, FallbackWithoutFsdpTranspose) {
  // mlp takes fsdp_transpose, so embed falls back to its second rule, also where fsdp_transpose has size 1.
  const AxisRules rules = on(kFsdpExpert);
  const auto result = rules.resolve(Names{"embed", "mlp"}, Shape{64, 128});
  EXPECT_EQ(to_string(result.sharding), "[fsdp+expert, -]");
  EXPECT_EQ(result.matched_rules[0], "embed -> fsdp+context+context_usp_ulysses+expert");
  EXPECT_EQ(result.matched_rules[1], "mlp -> fsdp_transpose+tensor+tensor_sequence+autoregressive");
  const auto alone = rules.resolve(Names{"embed", ""}, Shape{64, 128});
  EXPECT_EQ(alone.matched_rules[0], "embed -> fsdp+fsdp_transpose+context+context_usp_ulysses+expert");
  EXPECT_EQ(alone.matched_rules[1], "");
}

TEST_F(DefaultRules, ExpertWeightsSplitOverExpertAndFsdp) {
  EXPECT_EQ(resolve(kFsdpExpert, {"exp", "embed_moe", "mlp_moe"}, {8, 64, 128}), "[expert, fsdp, -]");
  EXPECT_EQ(resolve(kFsdpExpert, {"exp", "mlp_moe", "embed_moe"}, {8, 128, 64}), "[expert, -, fsdp]");
  EXPECT_EQ(resolve(kFsdpExpert, {"embed", ""}, {64, 8}), "[fsdp+expert, -]");
  EXPECT_EQ(resolve(kFsdpExpert, {"norm"}, {64}), "[-]");
}

TEST_F(DefaultRules, ActivationsOfTheBlock) {
  const Names input{"activation_batch", "activation_norm_length", "activation_embed"};
  EXPECT_EQ(resolve(kFsdpTensor, input, {16, 32, 64}), "[data+fsdp, -, tensor]");
  EXPECT_EQ(resolve(kFsdpExpert, input, {16, 32, 64}), "[fsdp+expert, -, -]");
}

TEST_F(DefaultRules, ADimThatDoesNotDivideKeepsWhatDoes) {
  const auto result = on(kFsdpTensor).resolve(Names{"activation_batch", "activation_embed"}, Shape{6, 64});
  EXPECT_EQ(to_string(result.sharding), "[data, tensor]");
  ASSERT_EQ(result.warnings.size(), 1u);
  EXPECT_EQ(result.warnings[0],
            "dim 'activation_batch' of size 6 is not divisible by data=2, fsdp=4; split over data=2");
  const auto whole = on(kFsdpTensor).resolve(Names{"embed", "mlp"}, Shape{30, 128});
  EXPECT_EQ(to_string(whole.sharding), "[-, tensor]");
  EXPECT_EQ(whole.warnings.at(0), "dim 'embed' of size 30 is not divisible by fsdp=4; replicated");
}

TEST_F(DefaultRules, ExpertsMustDivide) {
  for (const auto& [experts, nearest] : {std::pair{6, 8}, {5, 4}, {2, 4}, {1, 4}, {255, 256}}) {
    try {
      resolve(kFsdpExpert, {"exp", "embed_moe", "mlp_moe"}, {experts, 64, 128});
      FAIL() << experts;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_EQ(std::string(error.what()),
                fmt::format(
                    "[sharding] expected num_experts to be divisible by 4, the product of the expert axes "
                    "expert=4, got num_experts={}; the nearest legal value is {}, or change the parallelism "
                    "of those axes",
                    experts, nearest));
    }
  }
}

TEST_F(DefaultRules, OneRankShardsNothing) {
  EXPECT_EQ(resolve(Mesh(), {"exp", "embed_moe", "mlp_moe"}, {7, 5, 3}), "[-, -, -]");
  EXPECT_TRUE(on(Mesh()).resolve(Names{"embed", "mlp"}, Shape{7, 5}).warnings.empty());
  EXPECT_EQ(resolve(kFsdpTensor, {}, {}), "[]");
}

TEST(MeshFiles, ShardExpertsOnFsdp) {
  const Mesh mesh({{"data", 1}, {"fsdp", 2}, {"expert", 2}});
  const AxisRules rules(rules_of("/configs/mesh/shard-exp-on-fsdp.yml"), mesh);
  EXPECT_EQ(to_string(rules.resolve(Names{"exp", "embed_moe", "mlp_moe"}, Shape{8, 64, 128}).sharding),
            "[expert+fsdp, -, -]");
}

// An axis already taken, even by a rule whose axes all have size 1, keeps later rules away.
TEST(Rules, AxesAreTakenByName) {
  const Mesh mesh({{"a", 1}, {"b", 2}});
  const AxisRules rules({{"x", {"a"}}, {"y", {"a", "b"}}, {"y", {"b"}}, {"z", {"b"}}, {"x", {"b"}}}, mesh);
  EXPECT_EQ(to_string(rules.resolve(Names{"x", "y"}, Shape{4, 4}).sharding), "[-, b]");
  EXPECT_EQ(rules.resolve(Names{"x", "y"}, Shape{4, 4}).matched_rules[1], "y -> b");
  EXPECT_EQ(to_string(rules.resolve(Names{"y", "z"}, Shape{4, 4}).sharding), "[b, -]");
  EXPECT_EQ(to_string(rules.resolve(Names{"x"}, Shape{4}).sharding), "[-]")
      << "a later rule of an assigned dim";
}

}  // namespace
}  // namespace switchyard
