// Tests the architectures of GGUF files: files of llama.cpp's converter give transformers' logits; settings
// that a file states briefly, or not at all, are read as llama.cpp reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "config/test_support.h"
#include "convert/gguf_testing.h"
#include "convert/inspect.h"
#include "convert/logits.h"
#include "convert/tensor_source.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "gguf/gguf_weights.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class GgufFamily : public ::testing::TestWithParam<const char*> {};

// The logits are those of the last tokens.
TEST_P(GgufFamily, HasTheLogitsOfTransformers) {
  const std::string file = std::string(kSourceFolder) + "/tests/golden/gguf_families/" + GetParam();
  const auto io = SafetensorsFile::open(file + ".safetensors");
  const Tensor tokens = io.read("input_ids"), want = io.read("logits"),
               all = stored_logits_of(file + ".gguf", tokens);
  const std::int64_t count = want.size();
  ASSERT_GT(count, 0);
  ASSERT_GE(all.size(), count);
  const float* const found = all.data<float>() + all.size() - count;
  float largest = 0, difference = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(want.data<float>()[i]));
    difference = std::max(difference, std::abs(want.data<float>()[i] - found[i]));
  }
  EXPECT_LT(difference, 5e-6F * largest);
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamily,
                         ::testing::Values("llama4", "glm4moe", "minimaxm2", "olmoe", "qwen2moe",
                                           "qwen3vlmoe", "llama_biases"),
                         [](const auto& test) { return std::string(test.param); });

// The metadata of a model of two heads of 8, to which a test adds.
class GgufConfig {
 public:
  explicit GgufConfig(const std::string& architecture, std::uint32_t experts = 4)
      : architecture_(architecture) {
    file_.text("general.architecture", architecture);
    integer("attention.head_count", 2).integer("embedding_length", 16).integer("context_length", 64);
    integer("feed_forward_length", 24).integer("expert_count", experts).integer("expert_used_count", 2);
    number("attention.layer_norm_rms_epsilon", 1e-5f);
  }
  GgufConfig& integer(const std::string& key, std::uint32_t value) {
    file_.integer(architecture_ + "." + key, value);
    return *this;
  }
  GgufConfig& number(const std::string& key, float value) {
    file_.number(architecture_ + "." + key, value);
    return *this;
  }
  GgufConfig& flag(const std::string& key, bool value) {
    file_.flag(architecture_ + "." + key, value);
    return *this;
  }
  GgufConfig& flags(const std::string& key, const std::vector<bool>& values) {
    file_.flags(architecture_ + "." + key, values);
    return *this;
  }
  GgufConfig& tensor(const std::string& name, const Shape& shape) {
    file_.tensor(name, shape, Tensor::zeros(DType::f32, shape));
    return *this;
  }
  fs::path write() {
    tensor("token_embd.weight", {3, 16});
    fs::path path = fs::temp_directory_path() / fmt::format("config_{}.gguf", ::getpid());
    std::ofstream(path, std::ios::binary) << file_.bytes();
    return path;
  }
  GgufFile open() {
    const fs::path path = write();
    GgufFile file = GgufFile::open(path);
    fs::remove(path);
    return file;
  }
  json config() { return hub_config_of(open()); }
  std::string refusal() {
    try {
      return config().dump();
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  std::string architecture_;
  GgufWriter file_;
};

TEST(GgufConfig, WhatNoKeyOfLlama4Says) {
  const auto llama4 = [](std::uint32_t layers) {
    GgufConfig file("llama4");
    file.integer("block_count", layers)
        .integer("interleave_moe_layer_step", 2)
        .integer("expert_feed_forward_length", 12);
    return file;
  };
  const json usual = llama4(5).config();
  EXPECT_EQ(usual["no_rope_layers"], (json{1, 1, 1, 0, 1}));
  EXPECT_EQ(usual["attention_chunk_size"], 8192);
  EXPECT_EQ(usual["attn_temperature_tuning"], true);
  EXPECT_EQ(usual["use_qk_norm"], true);
  EXPECT_EQ(usual["intermediate_size"], 12);
  EXPECT_EQ(usual["intermediate_size_mlp"], 24);
  const json whole = llama4(5).integer("attention.sliding_window", 0).config();
  EXPECT_EQ(whole["no_rope_layers"], (json{1, 1, 1, 1, 1}));
  EXPECT_FALSE(whole.contains("attention_chunk_size"));
  EXPECT_EQ(whole["attn_temperature_tuning"], false);
  EXPECT_NE(llama4(5).integer("attention.sliding_window", 64).refusal().find("expected 0 (none) or 8192"),
            std::string::npos);
  GgufConfig large("llama4", 128);
  large.integer("block_count", 2)
      .integer("interleave_moe_layer_step", 2)
      .integer("expert_feed_forward_length", 12);
  EXPECT_EQ(large.config()["use_qk_norm"], false);
}

TEST(GgufConfig, PredictionLayersAreTheLastBlocks) {
  for (const std::string architecture : {"glm4moe", "deepseek2"}) {
    SCOPED_TRACE(architecture);
    GgufConfig file(architecture);
    file.integer("block_count", 3).integer("nextn_predict_layers", 1).integer("expert_gating_func", 2);
    file.integer("expert_feed_forward_length", 12).integer("rope.dimension_count", 4);
    if (architecture == "deepseek2")
      file.integer("attention.key_length", 8)
          .integer("attention.value_length", 8)
          .integer("attention.kv_lora_rank", 4);
    const json config = file.config();
    EXPECT_EQ(config["num_hidden_layers"], 2);
    EXPECT_EQ(config["num_nextn_predict_layers"], 1);
    GgufConfig all(architecture);
    all.integer("block_count", 1).integer("nextn_predict_layers", 1);
    EXPECT_NE(all.refusal().find("nextn_predict_layers=1: expected fewer than the 1 blocks"),
              std::string::npos);
  }
  GgufConfig file("glm4moe");
  file.integer("block_count", 2)
      .integer("nextn_predict_layers", 1)
      .integer("expert_feed_forward_length", 12)
      .integer("rope.dimension_count", 4);
  const GgufFile opened = file.tensor("blk.1.nextn.eh_proj.weight", {16, 32}).open();
  EXPECT_TRUE(GgufWeights(opened, hub_config_of(opened)).contains("model.layers.1.eh_proj.weight"));
}

TEST(GgufConfig, RoutersOfAnotherKindAreRefused) {
  for (const std::string architecture : {"glm4moe", "minimax-m2"}) {
    GgufConfig file(architecture);
    file.integer("block_count", 2)
        .integer("expert_feed_forward_length", 12)
        .integer("rope.dimension_count", 4)
        .integer("expert_gating_func", 1);
    EXPECT_NE(file.refusal().find("expert_gating_func=1: expected 2 (sigmoid)"), std::string::npos);
  }
}

TEST(GgufConfig, PartOfAHeadIsRotated) {
  const auto rotating = [](std::uint32_t width) {
    GgufConfig file("minimax-m2");
    file.integer("block_count", 2)
        .integer("expert_feed_forward_length", 12)
        .integer("rope.dimension_count", width);
    return file;
  };
  EXPECT_EQ(rotating(2).config()["rope_parameters"]["partial_rotary_factor"], 0.25);
  EXPECT_NE(rotating(16).refusal().find("rope.dimension_count=16: expected 1 to the 8 values"),
            std::string::npos);
}

TEST(GgufConfig, WidthsOfQwen2MoeAreInItsTensors) {
  GgufConfig file("qwen2moe");
  file.integer("block_count", 2)
      .tensor("blk.0.ffn_down_shexp.weight", {16, 20})
      .tensor("blk.0.ffn_down_exps.weight", {4, 16, 12});
  const json config = file.config();
  EXPECT_EQ(config["shared_expert_intermediate_size"], 20);
  EXPECT_EQ(config["moe_intermediate_size"], 12);
  EXPECT_EQ(config[kGgufAttentionBiases], "none");
  EXPECT_EQ(config["norm_topk_prob"], false);
}

// The tensors alone tell, whatever the architecture.
TEST(GgufConfig, BiasesOfAttentionAreThoseThatAreThere) {
  const auto with = [](const std::string& architecture, const std::vector<std::string>& biases) {
    GgufConfig file(architecture, architecture == "llama" || architecture == "qwen3" ? 0 : 4);
    file.integer("block_count", 2).integer("expert_feed_forward_length", 12);
    if (architecture == "deepseek2") {
      for (const char* key : {"rope.dimension_count", "attention.kv_lora_rank"}) file.integer(key, 4);
      for (const char* key : {"attention.key_length", "attention.value_length"}) file.integer(key, 8);
    }
    for (const std::string& name : biases) file.tensor("blk.0." + name, {16});
    return config_from_hub(file.config());
  };
  const std::vector<std::string> inputs{"attn_q.bias", "attn_k.bias", "attn_v.bias"};
  std::vector<std::string> all = inputs;
  all.push_back("attn_output.bias");
  for (const char* architecture : {"llama", "qwen3", "qwen3moe", "olmoe"}) {
    SCOPED_TRACE(architecture);
    EXPECT_EQ(with(architecture, {}).at("attention_bias"), false);
    EXPECT_EQ(with(architecture, {"attn_output.bias"}).at("attention_bias"), false);  // then it is surplus
    EXPECT_EQ(with(architecture, inputs).at("attention_bias"), true);
    EXPECT_EQ(with(architecture, inputs).at("attention_output_bias"), false);
    EXPECT_EQ(with(architecture, all).at("attention_bias"), true);
    EXPECT_EQ(with(architecture, all).at("attention_output_bias"), true);
  }
  EXPECT_EQ(with("deepseek2", {"attn_kv_a_mqa.bias"}).at("attention_bias"), true);
}

TEST(GgufConfig, SurplusTensorsHaveTheirOwnNames) {
  GgufConfig file("llama", 0);
  file.integer("block_count", 1).tensor("blk.0.attn_output.bias", {16});
  const GgufFile opened = file.open();
  const GgufWeights weights(opened, hub_config_of(opened));
  try {
    check_hub_tensors(weights, kLlama, {{"embedding", {3, 16}}}, 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("surplus: \"blk.0.attn_output.bias\""), std::string::npos)
        << error.what();
  }
}

TEST(GgufConfig, DeltaNetsStateTheWidthOfAHead) {
  GgufConfig file("qwen3next");
  file.integer("block_count", 2).integer("expert_feed_forward_length", 12);
  EXPECT_NE(file.refusal().find("qwen3next.attention.key_length"), std::string::npos) << file.refusal();
}

TEST(GgufConfig, ManyBlocksAreRefusedBeforeTheyAreListed) {
  GgufConfig file("llama4");
  file.integer("block_count", 4'000'000'000u).integer("interleave_moe_layer_step", 1);
  EXPECT_NE(file.refusal().find("block_count=4000000000: expected at most 65536"), std::string::npos);
}

constexpr const char* kArchitectures[] = {"llama",    "llama4",     "qwen2",     "qwen2moe",  "qwen3",
                                          "qwen3moe", "qwen3vlmoe", "qwen3next", "qwen35moe", "deepseek2",
                                          "glm4moe",  "minimax-m2", "olmoe",     "gpt-oss"};

// A model of an architecture, as small as its keys allow.
GgufConfig smallest(const std::string& architecture) {
  GgufConfig file(architecture, architecture == "qwen2" || architecture == "qwen3" ? 0 : 4);
  file.integer("block_count", 2).integer("expert_feed_forward_length", 12);
  if (architecture == "llama4") file.integer("interleave_moe_layer_step", 2);
  if (architecture == "gpt-oss") file.integer("attention.sliding_window", 8);
  if (architecture == "qwen2moe") file.tensor("blk.0.ffn_down_shexp.weight", {16, 20});
  if (architecture == "deepseek2")
    file.integer("attention.key_length", 8)
        .integer("attention.value_length", 8)
        .integer("attention.kv_lora_rank", 4)
        .integer("rope.dimension_count", 4);
  if (architecture == "qwen3next" || architecture == "qwen35moe")
    file.integer("attention.key_length", 8)
        .integer("expert_shared_feed_forward_length", 12)
        .integer("ssm.time_step_rank", 2)
        .integer("ssm.inner_size", 8)
        .integer("ssm.group_count", 1)
        .integer("ssm.state_size", 4)
        .integer("ssm.conv_kernel", 4);
  return file;
}

TEST(GgufConfig, KeysOfWhatAModelLacksAreRefused) {
  const std::map<std::string, float> keys{{"embedding_scale", 2.f},
                                          {"residual_scale", 0.5f},
                                          {"logit_scale", 0.5f},
                                          {"attention.scale", 0.5f},
                                          {"attention.output_scale", 0.5f},
                                          {"attention.value_scale", 0.5f},
                                          {"attention.temperature_scale", 0.1f},
                                          {"attn_logit_softcapping", 30.f},
                                          {"router_logit_softcapping", 30.f},
                                          {"final_logit_softcapping", 30.f},
                                          {"attention.max_alibi_bias", 8.f},
                                          {"attention.layer_norm_epsilon", 1e-5f},
                                          {"attention.clamp_kqv", -1.f},
                                          {"attention.value_length", 5.f},
                                          {"attention.shared_kv_layers", 1.f},
                                          {"attention.indexer.top_k", 4.f},
                                          {"rope.freq_base_swa", 5.f},
                                          {"rope.scaling.alpha", 2.f},
                                          {"rope.scaling.yarn_ext_factor", 0.f},
                                          {"swiglu_clamp_exp", 2.f},
                                          {"moe_latent_size", 8.f},
                                          {"expert_chunk_feed_forward_length", 8.f},
                                          {"expert_group_scale", 0.5f},
                                          {"expert_gating_func", 9.f},
                                          {"moe_every_n_layers", 2.f}};
  for (const std::string architecture : kArchitectures) {
    SCOPED_TRACE(architecture);
    EXPECT_TRUE(smallest(architecture).config().is_object());
    for (const auto& [key, value] : keys) {
      if (architecture == "deepseek2" && key == "attention.value_length") continue;
      const std::string told = smallest(architecture).number(key, value).refusal();
      EXPECT_NE(told.find(fmt::format(": {}.{}=", architecture, key)), std::string::npos)
          << key << ": " << told;
      EXPECT_EQ(told.find('\n'), std::string::npos) << told;
    }
    const std::string causal = smallest(architecture).flag("attention.causal", false).refusal();
    EXPECT_NE(causal.find("attention.causal=false: expected true"), std::string::npos) << causal;
  }
}

// Whatever a key says that changes nothing, no line is told; one that nobody knows is.
TEST(GgufConfig, KeysThatChangeNothingAreTaken) {
  for (const std::string architecture : kArchitectures) {
    SCOPED_TRACE(architecture);
    GgufConfig file = smallest(architecture);
    for (const char* key : {"embedding_scale", "residual_scale", "logit_scale", "attention.output_scale"})
      file.number(key, 1);
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping", "attention.scale",
                            "attention.max_alibi_bias", "attention.clamp_kqv", "attention.temperature_scale"})
      file.number(key, 0);
    for (const char* key : {"vocab_size", "pooling_type", "n_deepstack_layers", "expert_shared_count"})
      file.integer(key, 1);
    file.flag("attention.causal", true)
        .flag("rope.scaling.finetuned", true)
        .flag("use_parallel_residual", false);
    file.integer("expert_gating_func", 0);
    std::string notice = "none";
    hub_config_of(file.open(), &notice);
    EXPECT_EQ(notice, "");
    hub_config_of(smallest(architecture).integer("key_of_nobody", 3).number("another", 1).open(), &notice);
    EXPECT_NE(
        notice.find(fmt::format("without effect: \"{0}.another\", \"{0}.key_of_nobody\"", architecture)),
        std::string::npos)
        << notice;
  }
}

// What a file says of a router is done, or refused where no model of the architecture is like that.
TEST(GgufConfig, RoutersAreAsTheKeysSay) {
  for (const std::string architecture : {"qwen2moe", "qwen3moe", "qwen3vlmoe", "qwen3next", "olmoe"}) {
    for (const bool divides : {false, true})
      EXPECT_EQ(smallest(architecture).flag("expert_weights_norm", divides).config()["norm_topk_prob"],
                divides)
          << architecture;
  }
  for (const std::string architecture : {"llama", "minimax-m2", "gpt-oss", "qwen35moe"})
    EXPECT_NE(smallest(architecture)
                  .flag("expert_weights_norm", false)
                  .refusal()
                  .find("expert_weights_norm=false: expected true"),
              std::string::npos)
        << architecture;
  for (const std::string architecture : {"llama4", "deepseek2"})
    EXPECT_NE(smallest(architecture)
                  .flag("expert_weights_norm", true)
                  .refusal()
                  .find("expert_weights_norm=true: expected false"),
              std::string::npos)
        << architecture;
  for (const std::string architecture : {"llama", "llama4", "qwen3moe", "minimax-m2", "olmoe", "gpt-oss"})
    EXPECT_NE(smallest(architecture)
                  .number("expert_weights_scale", 2.5f)
                  .refusal()
                  .find("expert_weights_scale=2.5: expected 0 or 1"),
              std::string::npos)
        << architecture;
  for (const std::string architecture : {"deepseek2", "glm4moe"}) {
    EXPECT_EQ(smallest(architecture).number("expert_weights_scale", 2.5f).config()["routed_scaling_factor"],
              2.5);
    EXPECT_EQ(smallest(architecture).number("expert_weights_scale", 0).config()["routed_scaling_factor"], 1);
  }
  for (const std::string architecture : {"deepseek2", "glm4moe"}) {
    const std::string told = smallest(architecture).integer("leading_dense_block_count", 2).refusal();
    EXPECT_NE(told.find("leading_dense_block_count=2: expected fewer than the 2 layers"), std::string::npos)
        << told;
  }
  const std::map<std::string, std::uint32_t> gating{{"llama", 1},   {"qwen3moe", 1},   {"llama4", 2},
                                                    {"glm4moe", 2}, {"minimax-m2", 2}, {"gpt-oss", 3}};
  for (const auto& [architecture, own] : gating) {
    for (std::uint32_t other = 1; other < 5; ++other) {
      const std::string told = smallest(architecture).integer("expert_gating_func", other).refusal();
      EXPECT_EQ(told.find("expert_gating_func=") == std::string::npos, other == own) << told;
    }
  }
}

TEST(GgufConfig, WindowsAreThoseOfThePattern) {
  const auto kinds = [](GgufConfig file) {
    std::string layers;
    const json config = file.config();
    for (const json& kind : config.at("layer_types")) layers += kind == "sliding_attention" ? 'w' : '-';
    return layers;
  };
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const auto oss = [] {
    GgufConfig file("gpt-oss");
    file.integer("block_count", 4)
        .integer("expert_feed_forward_length", 12)
        .integer("attention.sliding_window", 8);
    return file;
  };
  EXPECT_EQ(kinds(oss()), "w-w-");
  EXPECT_EQ(kinds(oss().integer(kPattern, 3)), "ww-w");
  EXPECT_EQ(kinds(oss().integer(kPattern, 0)), "wwww");
  EXPECT_EQ(kinds(oss().integer(kPattern, 1)), "----");
  EXPECT_EQ(kinds(oss().flags(kPattern, {false, true, true, false})), "-ww-");
  EXPECT_NE(oss().flags(kPattern, {true}).refusal().find("a flag for each of 4 layers"), std::string::npos);
  EXPECT_NE(smallest("llama4").integer(kPattern, 2).refusal().find("pattern=2: expected 4"),
            std::string::npos);
  EXPECT_NE(
      smallest("llama").integer("attention.sliding_window", 8).refusal().find("sliding_window=8: expected 0"),
      std::string::npos);
  EXPECT_TRUE(smallest("llama").integer("attention.sliding_window", 64).config().is_object());
}

// A file whose model cannot be told is looked at, and the reason stands beside its tensors.
TEST(GgufConfig, InspectionSaysWhyAModelIsUnknown) {
  const auto look = [](GgufConfig file, const std::string& reason) {
    const fs::path path = file.write();
    const TensorSource source = TensorSource::open(path);
    const Inspection inspection = inspect(source, {});
    const std::string text = inspection_text(source, inspection, {});
    fs::remove(path);
    EXPECT_NE(text.find("  model       [gguf] " + path.string() + ": " + reason), std::string::npos) << text;
    EXPECT_NE(text.find("token_embd.weight"), std::string::npos) << text;
    EXPECT_NE(inspection_json(source, inspection)["problem"].dump().find(reason), std::string::npos);
  };
  look(smallest("qwen3moe").number("logit_scale", 0.5f), "qwen3moe.logit_scale=0.5: expected 0 or 1");
  look(GgufConfig("qwen3moe"), "the metadata has no ");
  look(GgufConfig("clip"), "general.architecture=");
}

TEST(GgufConfig, OtherArchitecturesAreRefusedByName) {
  const std::string told = GgufConfig("clip").integer("block_count", 2).refusal();
  EXPECT_MENTIONS(told, "general.architecture=\"clip\": expected ", "llama, ", "qwen35moe", "hy_v3",
                  "laguna");
}

}  // namespace
}  // namespace switchyard
