// Tests the architectures of GGUF files: files of llama.cpp's converter give transformers' logits; settings
// that a file states briefly, or not at all, are read as llama.cpp reads them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "convert/gguf_testing.h"
#include "convert/logits.h"
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
  GgufConfig& tensor(const std::string& name, const Shape& shape) {
    file_.tensor(name, shape, Tensor::zeros(DType::f32, shape));
    return *this;
  }
  GgufFile open() {
    tensor("token_embd.weight", {3, 16});
    const fs::path path = fs::temp_directory_path() / fmt::format("config_{}.gguf", ::getpid());
    std::ofstream(path, std::ios::binary) << file_.bytes();
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

TEST(GgufConfig, PredictionLayersAreLeftOut) {
  for (const std::string architecture : {"glm4moe", "deepseek2"}) {
    SCOPED_TRACE(architecture);
    GgufConfig file(architecture);
    file.integer("block_count", 3).integer("nextn_predict_layers", 1).integer("expert_gating_func", 2);
    file.integer("expert_feed_forward_length", 12).integer("rope.dimension_count", 4);
    if (architecture == "deepseek2")
      file.integer("attention.key_length", 8)
          .integer("attention.value_length", 8)
          .integer("attention.kv_lora_rank", 4);
    EXPECT_EQ(file.config()["num_hidden_layers"], 2);
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

TEST(GgufConfig, OtherArchitecturesAreRefusedByName) {
  const std::string told = GgufConfig("clip").integer("block_count", 2).refusal();
  EXPECT_NE(told.find("general.architecture=\"clip\": expected llama, llama4, qwen2"), std::string::npos)
      << told;
}

}  // namespace
}  // namespace switchyard
