// Tests every model file and every mesh file in configs/.
#include <algorithm>

#include "config/config_file.h"
#include "config/test_support.h"

namespace switchyard {
namespace {

TEST(ModelFiles, AllLoad) {
  const std::vector<std::string> models = config_names("models");
  EXPECT_EQ(models.size(), 68u);
  for (const std::string& model : models) {
    if (model == "deepseek-custom") continue;  // below
    EXPECT_EQ(problem_of({"model_name=" + model}), "") << model;
  }
}

TEST(ModelFiles, DeepseekCustomNeedsWhatIsPlanned) {
  EXPECT_MENTIONS(problem_of({"model_name=deepseek-custom"}), "planned", "models/deepseek-custom.yml");
  const Config config = config_of({"model_name=deepseek-custom", "override_model_config=true",
                                   "mhc_expansion_rate=1", "engram_layers=[]"});
  EXPECT_EQ(config.get_int("base_moe_mlp_dim"), 512);
}

TEST(ModelFiles, HoldTheReferenceValues) {
  const Config mixtral = config_of({"model_name=mixtral-8x7b"});
  EXPECT_EQ(mixtral.get_string("decoder_block"), "mixtral");
  EXPECT_EQ(mixtral.get_int("base_moe_mlp_dim"), 14336);
  EXPECT_EQ(mixtral.get_float("normalization_layer_epsilon"), 1e-5);
  const Config deepseek = config_of({"model_name=deepseek3-671b"});
  EXPECT_EQ(deepseek.get_int("num_experts"), 256);
  EXPECT_EQ(deepseek.get_float("routed_scaling_factor"), 2.5);
  EXPECT_TRUE(deepseek.get_bool("routed_bias"));
  EXPECT_EQ(config_of({"model_name=kimi-k2-1t"}).get_int("num_experts"), 384);
  EXPECT_TRUE(config_of({"model_name=qwen3-30b-a3b"}).get_bool("norm_topk_prob"));
}

TEST(ModelFiles, MayReplaceTheLayout) {
  const Config config = config_of({"model_name=deepseek3-671b-batchsplit"});
  EXPECT_EQ(config.mesh_axes(), (std::vector<std::string>{"data", "fsdp", "expert", "context"}));
  EXPECT_EQ(config.axis_rules().size(), 25u);  // with three for dims that the file does not know
  EXPECT_TRUE(notices_mention(config, {"inert", "use_batch_split_schedule"}));
}

TEST(MeshFiles, AllLoadAndComeLast) {
  const std::vector<std::string> meshes = config_names("mesh");
  EXPECT_EQ(meshes.size(), 9u);
  for (const std::string& mesh : meshes) {
    const Config config = config_of({"custom_mesh_and_rule=" + mesh, "mesh_axes=[data]"});
    EXPECT_NE(config.mesh_axes(), std::vector<std::string>{"data"}) << mesh;
    EXPECT_FALSE(config.axis_rules().empty()) << mesh;
  }
  EXPECT_EQ(config_of({"custom_mesh_and_rule=pure-fsdp"}).mesh_axes(), std::vector<std::string>{"fsdp"});
  EXPECT_EQ(config_of({"custom_mesh_and_rule=pure-fsdp"}).axis_rules().back(),
            (AxisRule{"exp_with_fsdp", {"fsdp"}}));
  EXPECT_EQ(config_of({"custom_mesh_and_rule=" + (config_folder() / "mesh/pure-fsdp.yml").string()})
                .axis_rules()
                .size(),
            17u);
}

TEST(MeshFiles, EpTpMovesExpertFromBatchToHeads) {
  for (const AxisRule& rule : config_of({"custom_mesh_and_rule=ep-tp"}).axis_rules()) {
    const bool uses_expert = std::find(rule.axes.begin(), rule.axes.end(), "expert") != rule.axes.end();
    const bool is_batch = rule.name.find("batch") != std::string::npos;
    if (is_batch || rule.name.starts_with("embed") || rule.name == "mlp_moe") {
      EXPECT_FALSE(uses_expert) << rule.name;
    } else if (rule.name == "exp" || rule.name == "activation_exp") {
      EXPECT_TRUE(uses_expert) << rule.name;
    } else if (rule.name == "heads" || rule.name == "activation_mlp" || rule.name == "vocab") {
      EXPECT_EQ(rule.axes.back(), "expert") << rule.name;
    }
  }
}

TEST(MeshFiles, WrongNamesAndKeys) {
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule=pure-fsd"}), "pure-fsd", "pure-fsdp");
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule=no/such.yml"}), "no/such.yml");
  EXPECT_MENTIONS(problem_of({"logical_axis_rules=[[experts, expert]]"}), "experts", "exp");
  EXPECT_MENTIONS(problem_of({"logical_axis_rules=[[exp, [expert, fsd]]]"}), "fsd", "ici_fsdp_parallelism");
  EXPECT_MENTIONS(problem_of({"custom_mesh_and_rule=" + (config_folder() / "models/llama2-7b.yml").string()}),
                  "mesh file", "base_emb_dim");
}

}  // namespace
}  // namespace switchyard
