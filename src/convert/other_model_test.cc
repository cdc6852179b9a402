// Tests that a checkpoint of another model is recognised by differing_key, when a run resumes, and by
// inspect, whichever key makes the difference.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"
#include "config/declaration.h"
#include "convert/inspect.h"
#include "core/error.h"
#include "engine/checkpoint_fit.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using ModelKeys = std::map<std::string, nlohmann::json>;

ModelKeys operator+(ModelKeys keys, const ModelKeys& more) {
  for (const auto& [key, value] : more) keys[key] = value;
  return keys;
}

const ModelKeys kDenseModel{
    {"decoder_block", "llama2"}, {"base_num_decoder_layers", 3}, {"base_emb_dim", 8}, {"base_mlp_dim", 16},
    {"base_num_query_heads", 4}, {"base_num_kv_heads", 2},       {"head_dim", 4},     {"vocab_size", 32}};
const ModelKeys kLlama3Model =
    kDenseModel + ModelKeys{{"rope_type", "llama3.1"}, {"rope_factor", 4.0}, {"rope_low_freq_factor", 1.0}};
const ModelKeys kBiasedModel = kDenseModel + ModelKeys{{"attention_bias", true}};
const ModelKeys kNormedModel = kDenseModel + ModelKeys{{"use_qk_norm", true}};
const ModelKeys kTiedModel = kDenseModel + ModelKeys{{"logits_via_embedding", true}};
const ModelKeys kMixtralModel = kDenseModel + ModelKeys{{"decoder_block", "mixtral"},
                                                        {"num_experts", 8},
                                                        {"num_experts_per_tok", 2},
                                                        {"base_moe_mlp_dim", 16}};
const ModelKeys kWindowedModel = kDenseModel + ModelKeys{{"sliding_window_size", 8}};
const ModelKeys kGptOssModel = kMixtralModel + ModelKeys{{"decoder_block", "gpt_oss"},
                                                         {"sliding_window_size", 8},
                                                         {"routed_bias", true},
                                                         {"mlp_activations", {"sigmoid", "linear"}},
                                                         {"mlp_activations_limit", 7.0}};
const ModelKeys kLlama4Model = kMixtralModel + ModelKeys{{"decoder_block", "llama4"},
                                                         {"nope_layer_interval", 2},
                                                         {"chunk_attn_window_size", 8},
                                                         {"use_qk_norm", true},
                                                         {"temperature_tuning", true}};
const ModelKeys kGatedModel = kDenseModel + ModelKeys{{"attention_gate", "value"}};
const ModelKeys kDrawnModel = kMixtralModel + ModelKeys{{"use_random_routing", true}};
const ModelKeys kLatentExpertsModel = kMixtralModel + ModelKeys{{"decoder_block", "qwen3_custom_moe"},
                                                                {"attention_output_dim", 8},
                                                                {"moe_expert_input_dim", 8}};
const ModelKeys kDeltaModel = kMixtralModel + ModelKeys{{"decoder_block", "qwen3_next"},
                                                        {"inhomogeneous_layer_cycle_interval", 3},
                                                        {"gdn_num_key_heads", 2},
                                                        {"gdn_num_value_heads", 4},
                                                        {"gdn_key_head_dim", 4},
                                                        {"gdn_value_head_dim", 4},
                                                        {"shared_experts", 1}};
const ModelKeys kDeepseekModel = kMixtralModel + ModelKeys{{"decoder_block", "deepseek"},
                                                           {"attention_type", "mla"},
                                                           {"q_lora_rank", 8},
                                                           {"kv_lora_rank", 8},
                                                           {"qk_nope_head_dim", 4},
                                                           {"qk_rope_head_dim", 4},
                                                           {"v_head_dim", 4},
                                                           {"first_num_dense_layers", 1},
                                                           {"shared_experts", 1},
                                                           {"routed_score_func", "sigmoid"},
                                                           {"norm_topk_prob", true},
                                                           {"routed_bias", true},
                                                           {"n_routing_groups", 4},
                                                           {"topk_routing_group", 2},
                                                           {"rope_type", "yarn"},
                                                           {"rope_factor", 4.0},
                                                           {"original_max_position_embeddings", 64},
                                                           {"max_position_embeddings", 256}};

const ModelKeys kEnvyModel =
    kMixtralModel + ModelKeys{{"decoder_block", "envy"}, {"interleave_moe_layer_step", 3}};

const ModelKeys kIndexedModel =
    kDeepseekModel +
    ModelKeys{{"use_indexer", true}, {"indexer_n_heads", 2}, {"indexer_head_dim", 8}, {"indexer_topk", 3}};
const ModelKeys kLimitedModel = kDeepseekModel + ModelKeys{{"expert_gate_limits", {0.0, 7.0, 7.0}}};
const ModelKeys kPredictingModel = kDeepseekModel + ModelKeys{{"mtp_num_layers", 1}};

struct OtherModel {
  const ModelKeys& model;
  std::string key;           // the one that is to be named
  ModelKeys change;          // it, and what it cannot be without
  std::string differs = {};  // what a run is refused by, if not that key
};

std::vector<OtherModel> other_models() {
  const auto one = [](const ModelKeys& model, const std::string& key, nlohmann::json value) {
    return OtherModel{model, key, {{key, std::move(value)}}};
  };
  const auto flipped = [&](const ModelKeys& model, const std::string& key) {
    return one(model, key, !Config::from_map(model, {}).get_bool(key));
  };
  return {one(kDenseModel, "base_num_decoder_layers", 4),
          one(kDenseModel, "base_emb_dim", 16),
          one(kDenseModel, "vocab_size", 64),
          one(kDenseModel, "base_num_query_heads", 8),
          one(kDenseModel, "base_num_kv_heads", 4),
          one(kDenseModel, "head_dim", 8),
          one(kDenseModel, "use_qk_norm", true),
          one(kDenseModel, "attention_bias", true),
          one(kBiasedModel, "attention_output_bias", false),
          one(kNormedModel, "qk_norm_over", "width"),
          one(kDenseModel, "partial_rotary_factor", 0.5),
          one(kDenseModel, "attention_sink", true),
          {kDenseModel, "windowed_layers", {{"sliding_window_size", 8}}, "sliding_window_size"},
          one(kWindowedModel, "sliding_window_size", 16),
          one(kWindowedModel, "windowed_layers", {0, 2}),
          one(kDenseModel, "clip_qkv", 2.0),
          one(kEnvyModel, "use_post_ffw_norm", true),
          one(kMixtralModel, "mlp_bias", true),
          one(kGptOssModel, "routed_bias", false),
          one(kGptOssModel, "mlp_activations_limit", 5.0),
          one(kGptOssModel, "mlp_activations_alpha", 1.5),
          one(kLlama4Model, "nope_layer_interval", 3),
          {kLlama4Model, "nope_layer_interval", {{"nope_layer_interval", -1}, {"unrotated_layers", {0}}}},
          one(kLlama4Model, "chunk_attn_window_size", 16),
          one(kLlama4Model, "use_qk_norm", false),
          one(kLlama4Model, "temperature_tuning", false),
          one(kLlama4Model, "temperature_tuning_floor_scale", 16),
          {kDeltaModel, "delta_layers", {{"inhomogeneous_layer_cycle_interval", 1}, {"delta_layers", {1}}}},
          one(kDeltaModel, "gdn_num_key_heads", 4),
          one(kDeltaModel, "gdn_num_value_heads", 8),
          one(kDeltaModel, "gdn_key_head_dim", 8),
          one(kDeltaModel, "gdn_value_head_dim", 8),
          one(kDeltaModel, "gdn_conv_kernel_dim", 3),
          flipped(kDeltaModel, "use_qk_norm_in_gdn"),
          one(kDeltaModel, "shared_expert_mlp_dim", 12),
          one(kDenseModel, "base_mlp_dim", 32),
          one(kDenseModel, "logits_via_embedding", true),
          one(kDenseModel, "compat", "maxtext"),
          one(kDenseModel, "normalization_layer_epsilon", 1e-3),
          one(kDenseModel, "final_logits_soft_cap", 30.0),
          one(kDenseModel, "rope_type", "llama3.1"),
          one(kDenseModel, "rope_frequency_divisors", nlohmann::json::array({1.0, 2.0})),
          one(kDenseModel, "rope_max_timescale", 500000),
          flipped(kTiedModel, "normalize_embedding_logits"),
          one(kLlama3Model, "rope_factor", 8.0),
          one(kLlama3Model, "rope_low_freq_factor", 2.0),
          one(kLlama3Model, "rope_high_freq_factor", 8.0),
          one(kLlama3Model, "original_max_position_embeddings", 128),
          one(kMixtralModel, "num_experts", 16),
          one(kMixtralModel, "num_experts_per_tok", 1),
          one(kDeepseekModel, "base_moe_mlp_dim", 32),
          one(kMixtralModel, "use_random_routing", true),
          {kMixtralModel, "attention_type", kDeepseekModel},
          {kMixtralModel, "decoder_block", kLatentExpertsModel},
          one(kDrawnModel, "init_weights_seed", 5),
          {kLatentExpertsModel,
           "moe_expert_input_dim",
           {{"attention_output_dim", 4}, {"moe_expert_input_dim", 4}}},
          one(kDeepseekModel, "q_lora_rank", 0),
          one(kDeepseekModel, "kv_lora_rank", 16),
          one(kDeepseekModel, "qk_nope_head_dim", 8),
          one(kDeepseekModel, "qk_rope_head_dim", 8),
          one(kDeepseekModel, "v_head_dim", 8),
          one(kDeepseekModel, "first_num_dense_layers", 2),
          {kMixtralModel, "first_num_dense_layers", {{"moe_layers", {0, 2}}}, "moe_layers"},
          one(kDeepseekModel, "latent_norm_epsilon", 1e-3),
          one(kDeepseekModel, "shared_experts", 2),
          one(kDeepseekModel, "routed_bias", false),
          one(kDeepseekModel, "routed_score_func", "softmax"),
          one(kDeepseekModel, "norm_topk_prob", false),
          one(kDeepseekModel, "routed_scaling_factor", 2.5),
          one(kDeepseekModel, "n_routing_groups", 2),
          one(kDeepseekModel, "topk_routing_group", 3),
          one(kDeepseekModel, "beta_fast", 16),
          one(kDeepseekModel, "beta_slow", 2),
          one(kDeepseekModel, "mtp_num_layers", 1),
          {kDeepseekModel, "use_indexer", kIndexedModel},
          one(kIndexedModel, "indexer_head_dim", 16),
          one(kIndexedModel, "indexer_topk", 4),
          flipped(kIndexedModel, "indexer_rope_interleave"),
          one(kPredictingModel, "mtp_num_layers", 2),
          one(kPredictingModel, "mtp_own_norm", false),
          one(kPredictingModel, "mtp_reads_final_norm", true),
          one(kGatedModel, "attention_gate", "head"),
          one(kGatedModel, "attention_gate_curve", "softplus"),
          one(kDenseModel, "attention_value_scale", 0.5),
          one(kLlama4Model, "temperature_tuning_offset", 0),
          one(kLimitedModel, "expert_gate_clamp", "after"),
          one(kLimitedModel, "shared_gate_limits", {3.0, 3.0, 3.0}),
          one(kIndexedModel, "shared_choice_layers", {2}),
          one(kDeepseekModel, "mscale", 0.5),
          one(kDeepseekModel, "max_position_embeddings", 64),
          flipped(kDeepseekModel, "rope_interleave"),
          flipped(kDeepseekModel, "rope_truncate"),
          flipped(kDeepseekModel, "rope_attention_scaling")};
}

class OtherModels : public testing::Test {
 protected:
  OtherModels() : folder_(testing::TempDir() + "other_models_" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~OtherModels() override { std::filesystem::remove_all(folder_); }

  // A checkpoint that has the keys of a model, and hardly a tensor.
  std::string checkpoint_of(const Config& config) {
    CheckpointWriter writer(FileSystem::real(), {folder_, "0"}, {{"a", DType::f32, {1}, false}});
    writer.write("a", Tensor::zeros(DType::f32, {1}));
    Manifest manifest;
    manifest.version = "1";
    manifest.model = config.get_string("decoder_block");
    manifest.config = config.resolved();
    writer.commit(manifest);
    return folder_ + "/0";
  }

 private:
  std::string folder_;
};

std::string refusal_of(const Config& config, const CheckpointFolder& checkpoint, Fit fit) {
  try {
    check_fits(config, checkpoint, {}, fit);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Inspected {
  std::string text;
  nlohmann::json json;
};

Inspected inspected(const std::string& path) {
  const TensorSource source = TensorSource::open(path);
  const InspectOptions options{.all = true};
  const Inspection inspection = inspect(source, options);
  return {inspection_text(source, inspection, options), inspection_json(source, inspection)};
}

TEST_F(OtherModels, AreNoticedByEveryKey) {
  std::set<std::string> noticed;
  for (const OtherModel& other : other_models()) {
    SCOPED_TRACE(other.key);
    const Config before = Config::from_map(other.model, {}),
                 after = Config::from_map(other.model + other.change, {});
    const ModelConfig was = model_config(before), is = model_config(after);
    EXPECT_EQ(differing_key(was, is), other.key);
    noticed.insert(differing_key(was, is));

    const std::string path = checkpoint_of(before);
    const CheckpointFolder checkpoint = CheckpointFolder::open(path);
    for (const Fit fit : {Fit::weights, Fit::state}) {
      EXPECT_EQ(refusal_of(before, checkpoint, fit), "");
      const std::string& named = other.differs.empty() ? other.key : other.differs;
      EXPECT_NE(refusal_of(after, checkpoint, fit).find("made with " + named + "="), std::string::npos)
          << refusal_of(after, checkpoint, fit);
    }

    const Inspected a = inspected(path);
    const Inspected b = inspected(checkpoint_of(after));
    EXPECT_EQ(a.json.at("architecture"), architecture_json(was));
    EXPECT_EQ(b.json.at("architecture"), architecture_json(is));
    EXPECT_NE(a.json.at("architecture"), b.json.at("architecture"));
    EXPECT_NE(a.json.at("architecture_hash"), b.json.at("architecture_hash"));
    EXPECT_NE(a.text.find(architecture_hash(was)), std::string::npos) << a.text;
    const ArchitectureField& field = *differing_field(was, is);
    EXPECT_EQ(a.text.find(field.meaning) != std::string::npos, field.applies(was)) << a.text;
  }
  for (const ArchitectureField& field : architecture_fields())
    EXPECT_TRUE(noticed.contains(field.key)) << field.key << " has no case here";
}

// rope_factor=40 is the default, which llama3.1 only takes when it is given.
TEST_F(OtherModels, AreNotSeenInTheSameKeys) {
  const Config config = Config::from_map(kLlama3Model + ModelKeys{{"rope_factor", 40.0}}, {});
  ASSERT_EQ(config.resolved()["rope_factor"], find_key("rope_factor")->default_value);
  ASSERT_NE(differing_key(model_config(config), model_config(config_of_stored(config.resolved(), "run"))),
            "");
  const CheckpointFolder checkpoint = CheckpointFolder::open(checkpoint_of(config));
  for (const Fit fit : {Fit::weights, Fit::state}) EXPECT_EQ(refusal_of(config, checkpoint, fit), "");
}

// What has no say in a model may change from run to run.
TEST_F(OtherModels, AreNotSeenWhereAKeyHasNoSay) {
  const std::vector<std::pair<ModelKeys, ModelKeys>> cases{
      {kDenseModel, {{"max_position_embeddings", 99}}},
      {kDenseModel, {{"decoder_block", "mistral"}}},
      {kDenseModel, {{"beta_fast", 7}}},
      {kMixtralModel, {{"routed_scaling_factor", 3.0}}},
      {kMixtralModel, {{"sparse_matmul", false}}},
      {kMixtralModel, {{"init_weights_seed", 5}}},
      {kDeepseekModel, {{"max_position_embeddings", 512}}}};
  for (const auto& [model, change] : cases) {
    SCOPED_TRACE(change.begin()->first);
    const std::string path = checkpoint_of(Config::from_map(model, {}));
    const Config after = Config::from_map(model + change, {});
    for (const Fit fit : {Fit::weights, Fit::state})
      EXPECT_EQ(refusal_of(after, CheckpointFolder::open(path), fit), "");
  }
}

}  // namespace
}  // namespace switchyard
