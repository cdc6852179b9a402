// Tests the published configuration of MaxText 0.2.5: every key is declared, every default accepted.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "config/config_file.h"
#include "config/declaration.h"
#include "config/test_support.h"
#include "config/value.h"
#include "core/testing.h"

namespace switchyard {
namespace {

using nlohmann::json;

json reference_keys() {
  std::ifstream file(std::string(kSourceFolder) + "/tests/golden/maxtext025_config/keys.json");
  return json::parse(file);
}

// A folder that is gone after the test, with the reference's base.yml in it.
class MaxText025 : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / fmt::format("maxtext025_{}", getpid());
    std::filesystem::create_directories(folder_);
    std::ofstream base(file("base.yml"));
    const json keys = reference_keys();
    for (const auto& [name, value] : keys["base"].items()) base << name << ": " << value.dump() << "\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  std::string written(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }

  std::filesystem::path folder_;
};

TEST_F(MaxText025, EveryKeyIsDeclaredAndItsDefaultAccepted) {
  const json keys = reference_keys();
  EXPECT_GT(keys["base"].size() + keys["elsewhere"].size(), 930u);
  for (const auto& table : keys) {
    for (const auto& [name, value] : table.items()) {
      if (is_group(name)) continue;  // its members are keys
      const KeyDeclaration* const key = find_key(name);
      ASSERT_NE(key, nullptr) << name;
      json typed;
      EXPECT_NO_THROW(typed = typed_value(*key, value, "MaxText")) << name;
      // A key that is not built must be off by default in the reference too, or its files would be refused.
      if (key->status == KeyStatus::planned) {
        EXPECT_EQ(typed, key->default_value) << name;
      }
    }
  }
}

TEST_F(MaxText025, EveryKeyHasAStatusWithItsReason) {
  const json keys = reference_keys();
  for (const auto& table : keys) {
    for (const auto& [name, value] : table.items()) {
      if (is_group(name)) continue;
      const KeyDeclaration& key = *find_key(name);
      EXPECT_FALSE(key.help.empty()) << name;
      const std::string status = status_name(key.status);
      EXPECT_TRUE(status == "active" || status == "inert" || status == "planned" || status == "derived")
          << name;
    }
  }
}

TEST_F(MaxText025, BaseFileStandsAsItIs) {
  const std::vector<std::string> tiny = {file("base.yml"), "model_name=deepseek3-tiny",
                                         "override_model_config=true", "base_num_decoder_layers=2",
                                         "first_num_dense_layers=1"};
  const Config config = config_of(tiny);
  EXPECT_EQ(config.get_string("dataset_type"), "synthetic");
  EXPECT_EQ(config.get_int("base_num_decoder_layers"), 2);
  // Its rules are ours.
  std::vector<std::string> ours = tiny;
  ours.erase(ours.begin());
  EXPECT_EQ(config.axis_rules(), config_of(ours).axis_rules());
  EXPECT_EQ(config.mesh_axes(), config_of(ours).mesh_axes());
}

TEST_F(MaxText025, SwitchesOfWhatIsNotBuiltAreRefused) {
  for (const char* setting :
       {"use_grpo=true", "learn_to_init_mode=true", "use_m3_model=true", "use_lineage=true",
        "te_moe_block=true", "moe_quantize_token_all_gather=true", "shard_embed_moe_on_fsdp=true",
        "convert_checkpoint_if_possible=true", "sharding_strategy=experimental",
        "use_tunix_gradient_accumulation=true", "use_agentic_rollout=true"})
    EXPECT_MENTIONS(problem_of({setting}), "planned", std::string(setting).substr(0, 4)) << setting;
  EXPECT_EQ(problem_of({"use_grpo=False", "rl={}", "dpo=None"}), "");
  EXPECT_EQ(config_of({"dpo.algo=orpo"}).get_string("dpo_algo"), "orpo");
  EXPECT_EQ(config_of({"dpo={algo: orpo, dpo_beta: 0.3}"}).get_float("dpo_beta"), 0.3);
}

TEST_F(MaxText025, DerivedValuesAreRefused) {
  EXPECT_MENTIONS(problem_of({"emb_dim=64"}), "emb_dim=64", "set base_emb_dim");
  EXPECT_MENTIONS(problem_of({"num_decoder_layers=2"}), "base_num_decoder_layers");
  EXPECT_MENTIONS(problem_of({"ici_parallelism=[1, 8]"}), "[1, 8]", "ici_");
  EXPECT_MENTIONS(problem_of({"logical_axis_rules_for_eval=[[embed, [fsdp]]]"}),
                  "custom_mesh_and_rule_for_eval");
  EXPECT_EQ(problem_of({"emb_dim=None", "logical_axis_rules_for_eval=[]"}), "");
}

TEST_F(MaxText025, InertKeysTakeAnyForm) {
  const Config config = config_of({"weight_block_size=128", "unquantized_modules=[gate]",
                                   "stop_strings=[end]", "generation_configs={greedy: {}}"});
  EXPECT_TRUE(notices_mention(config, {"inert", "weight_block_size", "stop_strings"}));
}

TEST_F(MaxText025, FilesInheritFromOthers) {
  written("low.yml", "base_emb_dim: 64\nvocab_size: 500\nbase_config: base.yml\n");
  const std::string top = written("top.yml", "base_config: low.yml\nbase_emb_dim: 32\n");
  const Config config = config_of({top});
  EXPECT_EQ(config.get_int("base_emb_dim"), 32);
  EXPECT_EQ(config.get_int("vocab_size"), 500);
  EXPECT_EQ(config.get_int("num_epoch"), 1);  // of the base.yml beside them
  // What is not beside the file is one of ours.
  std::filesystem::create_directories(folder_ / "alone");
  const Config of_ours =
      config_of({written("alone/top.yml", "base_config: gpu/base.yml\nbase_emb_dim: 16\n")});
  EXPECT_EQ(of_ours.get_int("num_epoch"), -1);
  EXPECT_EQ(of_ours.get_int("base_emb_dim"), 16);
  const Config of_model = config_of({written("alone/model.yml", "base_config: models/mixtral-8x7b.yml\n")});
  EXPECT_EQ(of_model.get_int("base_moe_mlp_dim"), 14336);
}

TEST_F(MaxText025, RulesOfAnInheritingFileReplaceThoseBelow) {
  const Config config =
      config_of({written("rules.yml", "base_config: base.yml\nlogical_axis_rules: [[embed, [fsdp]]]\n")});
  EXPECT_EQ(
      config.axis_rules(),
      (std::vector<AxisRule>{{"embed", {"fsdp"}}, {"embed_router", {"fsdp"}}, {"embed_attn", {"fsdp"}}}));
}

TEST_F(MaxText025, WrongBasesAreNamed) {
  EXPECT_MENTIONS(problem_of({written("a.yml", "base_config: no/such.yml\n")}), "a.yml",
                  "base_config=no/such.yml", "no such file");
  const std::string b = written("b.yml", "base_config: c.yml\n");
  written("c.yml", "base_config: b.yml\n");
  EXPECT_MENTIONS(problem_of({b}), "base_config=b.yml", "leads back to", "b.yml");
  EXPECT_MENTIONS(problem_of({written("d.yml", "base_config: d.yml\n")}), "leads back");
  EXPECT_MENTIONS(problem_of({written("e.yml", "base_config: [x]\n")}), "path of a file");
  EXPECT_MENTIONS(problem_of({"base_config=base.yml"}), "base_config", "config file");
}

// Files from before 0.2.5 have no rules for these dims.
TEST_F(MaxText025, DimsWithoutRulesAreSplitAsTheirStandIns) {
  const std::string old =
      written("old.yml",
              "mesh_axes: [fsdp, expert]\nlogical_axis_rules:\n  - [embed, [fsdp, expert]]\n"
              "  - [embed_moe, [fsdp]]\n  - [activation_batch, [fsdp]]\n");
  const auto rule_of = [&](const std::string& dim, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"custom_mesh_and_rule=" + old};
    arguments.insert(arguments.end(), more.begin(), more.end());
    for (const AxisRule& rule : config_of(arguments).axis_rules()) {
      if (rule.name == dim) return rule.axes;
    }
    return std::vector<std::string>{"none"};
  };
  const std::vector<std::string> both{"fsdp", "expert"}, fsdp{"fsdp"};
  EXPECT_EQ(rule_of("embed_attn", {}), both);
  EXPECT_EQ(rule_of("embed_router", {}), both);
  EXPECT_EQ(rule_of("embed_router", {"attention_type=mla"}), fsdp);
  EXPECT_EQ(rule_of("segment_ids_batch", {}), fsdp);
}

TEST_F(MaxText025, EvaluationMayHaveRulesOfItsOwn) {
  const Config config = config_of({"custom_mesh_and_rule_for_eval=pure-fsdp"});
  EXPECT_EQ(config.mesh_axes().size(), 12u);
  EXPECT_NE(config.axis_rules_for_eval(), config.axis_rules());
  EXPECT_EQ(config.axis_rules_for_eval(), config_of({"custom_mesh_and_rule=pure-fsdp"}).axis_rules());
  EXPECT_EQ(config_of({}).axis_rules_for_eval(), config_of({}).axis_rules());
  EXPECT_TRUE(
      notices_mention(config_of({"custom_mesh_and_rule=pure-fsdp", "custom_mesh_and_rule_for_eval=ep-as-dp"}),
                      {"custom_mesh_and_rule_for_eval", "no axis expert"}));
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule_for_eval=pure-fsd"}), "for_eval", "pure-fsdp");
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule_for_eval=" +
                              written("m.yml", "logical_axis_rules: [[exq, [fsdp]]]\n")}),
                  "exq", "m.yml");
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule_for_eval=" +
                              written("n.yml", "logical_axis_rules: [[exp, [wings]]]\n")}),
                  "wings", "n.yml");
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule_for_eval=" + written("w.yml", "mesh_axes: [wings]\n")}),
                  "wings", "ici_wings_parallelism");
}

}  // namespace
}  // namespace switchyard
