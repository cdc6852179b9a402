// Compares our Hugging Face configs and tensor names with those of the published files.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json llama() {
  return json::parse(R"({"model_type":"llama","hidden_act":"silu","hidden_size":64,"intermediate_size":176,
      "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,
      "vocab_size":256,"rms_norm_eps":1e-5,
      "max_position_embeddings":512,"rope_scaling":null})");
}

json deepseek3() {
  return json::parse(
      R"({"model_type":"deepseek_v3","hidden_act":"silu","hidden_size":64,"intermediate_size":128,
      "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":4,
      "vocab_size":256,"rms_norm_eps":1e-6,
      "max_position_embeddings":163840,"rope_theta":10000,"rope_scaling":{"type":"yarn",
      "factor":40,"beta_fast":32,
      "beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0,
      "original_max_position_embeddings":4096},"q_lora_rank":40,
      "kv_lora_rank":32,"qk_nope_head_dim":24,"qk_rope_head_dim":16,"v_head_dim":20,"first_k_dense_replace":1,
      "n_routed_experts":16,"num_experts_per_tok":4,"n_shared_experts":1,
      "moe_intermediate_size":16,"n_group":4,
      "topk_group":2,"norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid",
      "topk_method":"noaux_tc","num_nextn_predict_layers":1,"moe_layer_freq":1})");
}

void expect_refused(json config, const std::string& text) {
  try {
    config_from_hub(config);
    ADD_FAILURE() << "accepted, expected an error with: " << text;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

TEST(HubConfig, Llama) {
  auto ours = config_from_hub(llama());
  EXPECT_EQ(ours["decoder_block"], "llama2");
  EXPECT_EQ(ours["head_dim"], 16);
  EXPECT_EQ(ours["base_num_kv_heads"], 2);
  EXPECT_EQ(ours["rope_max_timescale"], 10000);
  EXPECT_TRUE(ours["rope_max_timescale"].is_number_integer());
  EXPECT_EQ(ours["rope_type"], "default");
  EXPECT_EQ(ours["logits_via_embedding"], false);
  EXPECT_EQ(ours["attention_type"], "global");
}

TEST(HubConfig, LlamaRopeScalingInBothStyles) {
  const json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  json published = llama(), current = llama();
  published["rope_scaling"] = scaling;
  published["rope_scaling"]["rope_type"] = "llama3";
  published["rope_theta"] = 500000.0;
  current.erase("rope_scaling");
  current["rope_parameters"] = scaling;
  current["rope_parameters"]["rope_type"] = "llama3";
  current["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(config_from_hub(published), config_from_hub(current));
  EXPECT_EQ(config_from_hub(current)["rope_type"], "llama3.1");
  EXPECT_EQ(config_from_hub(current)["rope_factor"], 8);
  EXPECT_EQ(config_from_hub(current)["rope_high_freq_factor"], 4);
}

TEST(HubConfig, Deepseek3) {
  auto ours = config_from_hub(deepseek3());
  const std::map<std::string, json> expected = {{"decoder_block", "deepseek"},
                                                {"attention_type", "mla"},
                                                {"q_lora_rank", 40},
                                                {"kv_lora_rank", 32},
                                                {"qk_nope_head_dim", 24},
                                                {"qk_rope_head_dim", 16},
                                                {"v_head_dim", 20},
                                                {"first_num_dense_layers", 1},
                                                {"num_experts", 16},
                                                {"num_experts_per_tok", 4},
                                                {"shared_experts", 1},
                                                {"base_moe_mlp_dim", 16},
                                                {"n_routing_groups", 4},
                                                {"topk_routing_group", 2},
                                                {"norm_topk_prob", true},
                                                {"routed_scaling_factor", 2.5},
                                                {"routed_score_func", "sigmoid"},
                                                {"routed_bias", true},
                                                {"rope_type", "yarn"},
                                                {"rope_factor", 40},
                                                {"mscale", 1.0},
                                                {"rope_interleave", true},
                                                {"original_max_position_embeddings", 4096}};
  for (const auto& [key, value] : expected) EXPECT_EQ(ours[key], value) << key;
  json kimi = deepseek3();
  kimi["model_type"] = "kimi_k2";
  kimi["n_group"] = 1;
  kimi["topk_group"] = 1;
  EXPECT_EQ(config_from_hub(kimi)["n_routing_groups"], -1);
}

TEST(HubConfig, Deepseek32AndGlm5HaveIndexers) {
  json config = deepseek3();
  config.update(json{{"model_type", "deepseek_v32"},
                     {"index_n_heads", 16},
                     {"index_head_dim", 24},
                     {"index_topk", 8},
                     {"layer_types", {"indexed_attention", "indexed_attention", "indexed_attention"}},
                     {"mlp_layer_types", {"dense", "sparse", "sparse"}}});
  auto ours = config_from_hub(config);
  const std::map<std::string, json> expected = {{"use_indexer", true},
                                                {"indexer_n_heads", 16},
                                                {"indexer_head_dim", 24},
                                                {"indexer_topk", 8},
                                                {"indexer_rope_interleave", false},
                                                {"latent_norm_epsilon", 1e-6},
                                                {"moe_layers", json::array({1, 2})},
                                                {"n_routing_groups", 4}};
  for (const auto& [key, value] : expected) EXPECT_EQ(ours[key], value) << key;
  config["model_type"] = "glm_moe_dsa";
  EXPECT_EQ(config_from_hub(config)["indexer_rope_interleave"], true);
  config["indexer_types"] = {"full", "full", "shared"};
  EXPECT_EQ(config_from_hub(config)["shared_choice_layers"], json::array({2}));
  config["indexer_types"] = {"shared", "full", "full"};  // no layer before the first has a choice
  expect_refused(config, "indexer_types");
  config.erase("indexer_types");
  config["q_lora_rank"] = nullptr;
  expect_refused(config, "q_lora_rank");
}

TEST(HubConfig, Deepseek2Groups) {
  json config = deepseek3();
  config.update(json{{"model_type", "deepseek_v2"},
                     {"scoring_func", "softmax"},
                     {"topk_method", "greedy"},
                     {"norm_topk_prob", false},
                     {"q_lora_rank", nullptr}});
  auto greedy = config_from_hub(config);
  EXPECT_EQ(greedy["q_lora_rank"], 0);
  EXPECT_EQ(greedy["n_routing_groups"], -1);
  EXPECT_EQ(greedy["routed_bias"], false);
  config["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(config_from_hub(config)["n_routing_groups"], 4);
  config["norm_topk_prob"] = true;
  expect_refused(config, "norm_topk_prob");
}

TEST(HubConfig, MixtralMistralQwen) {
  json config = llama();
  config["rope_theta"] = 1e6;
  config["model_type"] = "mixtral";
  config["num_local_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  auto mixtral = config_from_hub(config);
  EXPECT_EQ(mixtral["base_moe_mlp_dim"], 176);
  EXPECT_EQ(mixtral["num_experts"], 8);
  config["model_type"] = "qwen3_moe";
  config["moe_intermediate_size"] = 32;
  auto qwen = config_from_hub(config);
  EXPECT_EQ(qwen["head_dim"], 16);
  EXPECT_EQ(qwen["use_qk_norm"], true);
  EXPECT_EQ(qwen["norm_topk_prob"], false);
  EXPECT_EQ(qwen["base_mlp_dim"], 32);
  config["mlp_only_layers"] = {0};
  EXPECT_EQ(config_from_hub(config)["moe_layers"], json::array({1}));
  config["model_type"] = "mistral";
  EXPECT_EQ(config_from_hub(config)["decoder_block"], "mistral");
  config["sliding_window"] = 4096;
  EXPECT_EQ(config_from_hub(config)["decoder_block"], "mistral");
  config["sliding_window"] = 256;
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 256);
  // A text may be longer than the positions that the file speaks of.
  config["max_position_embeddings"] = 128;
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 256);
  // transformers takes a mistral with layer_types for a ministral, whose layers differ.
  config["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(config_from_hub(config)["windowed_layers"], json::array({1}));
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 0);
  config["layer_types"] = {"full_attention", "sliding_attention"};
  config["sliding_window"] = nullptr;
  expect_refused(config, "layer_types");
}

TEST(HubConfig, RefusesWhatWouldChangeTheResult) {
  const auto with = [](json config, const char* key, json value) {
    config[key] = std::move(value);
    return config;
  };
  expect_refused(json::array(), "expected an object");
  expect_refused(json::object(), "model_type");
  expect_refused(with(llama(), "model_type", "gpt2"), "gpt2");
  expect_refused(with(llama(), "mlp_bias", true), "mlp_bias");
  expect_refused(with(llama(), "hidden_act", "gelu"), "hidden_act");
  expect_refused(with(llama(), "hidden_size", "64"), "hidden_size");
  expect_refused(with(llama(), "hidden_size", -64), "hidden_size");
  expect_refused(with(llama(), "hidden_size", 0), "hidden_size");
  expect_refused(with(llama(), "hidden_size", nullptr), "hidden_size is missing");
  expect_refused(with(llama(), "num_attention_heads", 3), "multiple");
  expect_refused(with(llama(), "rope_scaling", {{"type", "dynamic"}, {"factor", 2}}), "rope_type");
  expect_refused(with(llama(), "rope_scaling", 3), "rope_scaling");
  expect_refused(with(llama(), "quantization_config", {{"quant_method", "fp8"}}),
                 "quantization_config: quant_method=fp8");
  expect_refused(with(deepseek3(), "num_experts_per_tok", 17), "num_experts_per_tok");
  expect_refused(with(deepseek3(), "n_group", 5), "n_group");
  expect_refused(with(deepseek3(), "scoring_func", "softmax"), "scoring_func");
  json unequal = deepseek3();
  unequal["rope_scaling"]["mscale"] = 0.5;
  expect_refused(unequal, "mscale");
}

json with_rope(json config, const json& scaling) {
  config["rope_scaling"] = scaling;
  return config;
}

// transformers 5 takes rope_scaling where it is not empty, and theta and share beside it, too.
TEST(HubConfig, RotationIsReadWhereverItStands) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const json plain = {{"rope_type", "default"}, {"rope_theta", 70000}};
  json both = with_rope(llama(), yarn);
  both.erase("rope_theta");
  both["rope_parameters"] = plain;
  ConfigKeys ours = config_from_hub(both);
  EXPECT_EQ(ours["rope_type"], "yarn");
  EXPECT_EQ(ours["rope_factor"], 4);
  EXPECT_EQ(ours["rope_max_timescale"], 70000);
  EXPECT_EQ(ours["rope_attention_scaling"], true);
  both["rope_theta"] = 80000;  // which transformers takes where rope_scaling has none
  EXPECT_EQ(config_from_hub(both)["rope_max_timescale"], 80000);
  both["rope_scaling"] = json::object();
  EXPECT_EQ(config_from_hub(both)["rope_type"], "default");
  EXPECT_EQ(config_from_hub(both)["rope_max_timescale"], 70000);
  both["rope_scaling"] = yarn;
  both["rope_parameters"] = json::object();
  EXPECT_EQ(config_from_hub(both)["rope_type"], "yarn");
  both["original_max_position_embeddings"] = 64;  // beside them it wins
  EXPECT_EQ(config_from_hub(both)["original_max_position_embeddings"], 64);
  json nested = llama();
  nested["rope_parameters"] = {{"full_attention", plain}, {"rope_theta", 1e4}};
  expect_refused(nested, "rope full_attention");
}

TEST(HubConfig, YarnHasTheTemperatureOfTransformers) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const auto scaling = [&](const json& more) {
    json rope = yarn;
    rope.update(more);
    return config_from_hub(with_rope(llama(), rope));
  };
  EXPECT_EQ(scaling({{"mscale", 0.7}})["rope_attention_scaling"], true);  // one alone has no say
  EXPECT_EQ(scaling({{"mscale_all_dim", 0.7}})["rope_attention_scaling"], true);
  EXPECT_EQ(scaling({{"mscale", 0.7}, {"mscale_all_dim", 0.7}})["rope_attention_scaling"], false);
  EXPECT_EQ(scaling({{"attention_factor", 1.0}})["rope_attention_scaling"], false);
  EXPECT_EQ(scaling({{"attention_factor", 1.1386294361119891}})["rope_attention_scaling"], true);
  EXPECT_EQ(scaling({{"attention_factor", nullptr}})["rope_attention_scaling"], true);
  EXPECT_EQ(scaling({{"beta_fast", 16}, {"beta_slow", 0}})["beta_slow"], 1);
  EXPECT_EQ(scaling({{"truncate", false}})["rope_truncate"], false);
  EXPECT_EQ(scaling({{"factor", nullptr}})["rope_factor"], 4);  // of 512 to 128 positions
  for (const json& other :
       {json{{"attention_factor", 1.2}}, json{{"mscale", 1.0}, {"mscale_all_dim", 0.5}}}) {
    json rope = yarn;
    rope.update(other);
    expect_refused(with_rope(llama(), rope), other.begin().key());
  }
}

// Its scores are scaled by mscale_all_dim alone, the rotated part by what both leave.
TEST(HubConfig, LatentAttentionWithoutMscale) {
  json config = deepseek3();
  config["rope_scaling"].erase("mscale");
  ConfigKeys one = config_from_hub(config);
  EXPECT_EQ(one["mscale"], 1);
  EXPECT_EQ(one["rope_attention_scaling"], true);
  config["rope_scaling"].erase("mscale_all_dim");
  ConfigKeys none = config_from_hub(config);
  EXPECT_EQ(none["mscale"], 0);
  EXPECT_EQ(none["rope_attention_scaling"], true);
}

TEST(HubConfig, LinearRotationDividesPositions) {
  ConfigKeys ours = config_from_hub(with_rope(llama(), {{"type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(ours["rope_type"], "linear");
  EXPECT_EQ(ours["rope_factor"], 4);
  RopeConfig linear;
  linear.type = "linear";
  linear.factor = 4;
  const RopeConfig plain;
  const std::vector<double> a = rope_frequencies(plain, 8), b = rope_frequencies(linear, 8);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(b[i], a[i] / 4);
  for (const char* kind : {"dynamic", "longrope", "proportional"})
    expect_refused(with_rope(llama(), {{"rope_type", kind}, {"factor", 4.0}}), kind);
}

// transformers 5 has windows in all layers of a qwen3_moe, from max_window_layers on in a qwen3.
TEST(HubConfig, WindowsOfQwen3) {
  json config = llama();
  config.update({{"model_type", "qwen3_moe"},
                 {"rope_theta", 10000},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"use_sliding_window", true},
                 {"sliding_window", 5}});
  for (const json& before : {json(), json(0), json(1)}) {
    config["max_window_layers"] = before;
    ConfigKeys ours = config_from_hub(config);
    EXPECT_EQ(ours["sliding_window_size"], 5);
    EXPECT_FALSE(ours.contains("windowed_layers"));
  }
  config["layer_types"] = {"full_attention", "sliding_attention"};
  expect_refused(config, "layer_types");
  config["layer_types"] = nullptr;
  config["sliding_window"] = nullptr;
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 0);
  config.erase("sliding_window");
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 4096);
  config["model_type"] = "qwen3";
  config["max_window_layers"] = 1;
  EXPECT_EQ(config_from_hub(config)["windowed_layers"], json::array({1}));
  config.erase("max_window_layers");
  EXPECT_EQ(config_from_hub(config)["sliding_window_size"], 0);
}

Tensor counting(const Shape& shape) {
  Tensor t(DType::f32, shape);
  std::iota(t.data<float>(), t.data<float>() + t.size(), 0.0f);
  return t;
}

TEST(HubTensors, NamesAndShapes) {
  const auto check = [](const ModelFamily& family, const std::string& name, const Shape& ours,
                        const std::string& first, const Shape& shape) {
    EXPECT_EQ(hub_tensors(family, name, ours).names[0], first);
    EXPECT_EQ(hub_shape(family, name, ours), shape) << name;
  };
  check(kLlama, "embedding", {256, 64}, "model.embed_tokens.weight", {256, 64});
  check(kLlama, "head", {64, 256}, "lm_head.weight", {256, 64});
  check(kLlama, "layers.11.attention.query", {64, 4, 24}, "model.layers.11.self_attn.q_proj.weight",
        {96, 64});
  check(kLlama, "layers.0.attention.out", {4, 24, 64}, "model.layers.0.self_attn.o_proj.weight", {64, 96});
  check(kMixtral, "layers.0.moe.wi_1", {8, 64, 72}, "model.layers.0.block_sparse_moe.experts.0.w3.weight",
        {72, 64});
  check(kMixtral, "layers.0.moe.gate", {64, 8}, "model.layers.0.block_sparse_moe.gate.weight", {8, 64});
  check(kDeepseekV3, "layers.1.moe.gate_bias", {16}, "model.layers.1.mlp.gate.e_score_correction_bias", {16});
  check(kDeepseekV3, "layers.1.attention.wkv_b", {32, 4, 44}, "model.layers.1.self_attn.kv_b_proj.weight",
        {176, 32});
  check(kQwen3Moe, "layers.1.moe.wo", {8, 32, 64}, "model.layers.1.mlp.experts.0.down_proj.weight", {64, 32});
  EXPECT_EQ(hub_tensors(kQwen3Moe, "layers.1.moe.wo", {8, 32, 64}).names[7],
            "model.layers.1.mlp.experts.7.down_proj.weight");
}

TEST(HubTensors, ElementsMoveToTheirPlaces) {
  const Shape shape = {3, 2, 5};  // [M,N,D]
  const auto query = hub_tensors(kLlama, "layers.0.attention.query", shape);
  const Tensor ours = counting(shape);
  const auto hub = to_hub(query, ours);
  for (std::int64_t m = 0; m < 3; ++m) {
    for (std::int64_t nd = 0; nd < 10; ++nd) {
      EXPECT_EQ(hub[0].data<float>()[nd * 3 + m], ours.data<float>()[m * 10 + nd]);
    }
  }
  const auto experts = hub_tensors(kMixtral, "layers.0.moe.wi_0", {2, 3, 4});
  const auto parts = to_hub(experts, counting({2, 3, 4}));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[1].shape(), (Shape{4, 3}));
  EXPECT_EQ(parts[1].data<float>()[0 * 3 + 1], 12 + 4);
}

TEST(HubTensors, ThereAndBackAgain) {
  const std::map<std::string, Shape> parameters = {{"embedding", {7, 5}},
                                                   {"final_norm", {5}},
                                                   {"head", {5, 7}},
                                                   {"layers.0.attention.query", {5, 3, 2}},
                                                   {"layers.0.attention.out", {3, 2, 5}},
                                                   {"layers.0.moe.wi_0", {4, 5, 3}},
                                                   {"layers.0.moe.wo", {1, 3, 40}},
                                                   {"layers.0.mlp.wo", {70, 33}}};
  for (const auto& [name, shape] : parameters) {
    for (DType dtype : {DType::f32, DType::bf16}) {
      const auto tensors = hub_tensors(kDeepseekV3, name, shape);
      const Tensor ours = counting(shape).cast(dtype);
      const Tensor back = to_ours(tensors, to_hub(tensors, ours), shape);
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_TRUE(std::equal(ours.raw(), ours.raw() + ours.bytes(), back.raw())) << name;
    }
  }
}

class HubFolder : public ::testing::Test {
 protected:
  HubFolder() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_hub_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    for (const auto& [name, shape] : parameters_) {
      const auto tensors = hub_tensors(kDeepseekV3, name, shape);
      const auto parts = to_hub(tensors, counting(shape));
      for (std::size_t i = 0; i < parts.size(); ++i) stored_[tensors.names[i]] = parts[i];
    }
  }
  ~HubFolder() override { fs::remove_all(path_); }

  WeightFolder folder() {
    write_safetensors(path_ + "/model.safetensors", stored_, {});
    return WeightFolder::open(path_);
  }
  std::string problem() {
    try {
      check_hub_tensors(folder(), kDeepseekV3, parameters_, 1);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  }

  const std::map<std::string, Shape> parameters_ = {{"embedding", {7, 5}},
                                                    {"final_norm", {5}},
                                                    {"layers.0.moe.wi_0", {2, 5, 3}},
                                                    {"layers.0.mlp.wo", {3, 5}}};
  std::map<std::string, Tensor> stored_;
  std::string path_;
};

TEST_F(HubFolder, LoadsAndSkipsExtraLayersWithNotices) {
  stored_["model.layers.1.eh_proj.weight"] = counting({2});
  stored_["model.layers.0.self_attn.rotary_emb.inv_freq"] = counting({2});
  stored_["lm_head.weight"] = counting({7, 5});
  EXPECT_EQ(problem(), "");
  EXPECT_EQ(check_hub_tensors(folder(), kDeepseekV3, parameters_, 1).size(), 3u);
  const Tensor wi = load_from_hub(folder(), kDeepseekV3, "layers.0.moe.wi_0", {2, 5, 3});
  EXPECT_EQ(wi.data<float>()[29], 29);
}

TEST_F(HubFolder, NamesWhatDoesNotFit) {
  stored_.erase("model.norm.weight");
  stored_["model.layers.0.mlp.experts.1.gate_proj.weight"] = counting({5, 3});
  stored_["model.layers.0.odd"] = counting({1});
  const std::string message = problem();
  EXPECT_NE(message.find("missing: model.norm.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("experts.1.gate_proj.weight [5,3] (expected [3,5])"), std::string::npos) << message;
  EXPECT_NE(message.find("surplus: \"model.layers.0.odd\""), std::string::npos) << message;
  const auto weights = folder();
  EXPECT_THROW(load_from_hub(weights, kDeepseekV3, "final_norm", {5}), Error);
  EXPECT_THROW(load_from_hub(weights, kDeepseekV3, "layers.0.moe.wi_0", {2, 5, 3}), Error);
}

json qwen3_next() {
  return json::parse(
      R"({"model_type":"qwen3_next","hidden_act":"silu","hidden_size":64,"intermediate_size":96,
      "num_hidden_layers":8,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":256,"rms_norm_eps":1e-6,
      "max_position_embeddings":512,"rope_theta":10000000,"num_experts":8,"num_experts_per_tok":3,
      "moe_intermediate_size":16,"shared_expert_intermediate_size":24})");
}

// What a published file need not state.
TEST(HubConfig, Qwen3Next) {
  auto ours = config_from_hub(qwen3_next());
  EXPECT_EQ(ours["decoder_block"], "qwen3_next");
  EXPECT_EQ(ours["head_dim"], 256);
  EXPECT_EQ(ours["partial_rotary_factor"], 0.25);
  EXPECT_EQ(ours["inhomogeneous_layer_cycle_interval"], 4);
  EXPECT_FALSE(ours.contains("delta_layers"));
  EXPECT_EQ(ours["gdn_num_value_heads"], 32);
  EXPECT_EQ(ours["gdn_conv_kernel_dim"], 4);
  EXPECT_EQ(ours["shared_expert_mlp_dim"], 24);
  EXPECT_EQ(ours["norm_topk_prob"], true);
  json other = qwen3_next();
  other["full_attention_interval"] = 2;
  EXPECT_EQ(config_from_hub(other)["inhomogeneous_layer_cycle_interval"], 2);
  other["layer_types"] = json::array();
  for (int i = 0; i < 8; ++i) other["layer_types"].push_back(i < 3 ? "linear_attention" : "full_attention");
  EXPECT_EQ(config_from_hub(other)["delta_layers"], (json{0, 1, 2}));
}

TEST(HubConfig, Qwen35MoeInsideAnotherConfig) {
  json text = qwen3_next();
  text["model_type"] = "qwen3_5_moe_text";
  text.erase("intermediate_size");
  const json outer{{"model_type", "qwen3_5_moe"}, {"text_config", text}, {"tie_word_embeddings", true}};
  auto ours = config_from_hub(outer);
  EXPECT_EQ(ours["decoder_block"], "qwen3_5_moe");
  EXPECT_EQ(ours["base_moe_mlp_dim"], 16);
  EXPECT_EQ(ours["logits_via_embedding"], true);
  text["tie_word_embeddings"] = true;
  EXPECT_EQ(ours, config_from_hub(text));
  expect_refused({{"model_type", "qwen3_5_moe"}}, "text_config");
}

TEST(HubTensors, PartsBesideTheDecoderAreLeftAside) {
  for (const char* name :
       {"mtp.fc.weight", "mtp.layers.0.self_attn.k_proj.weight", "model.visual.merger.norm.weight",
        "vision_model.a.weight", "multi_modal_projector.b.weight", "model.layers.4.input_layernorm.weight"})
    EXPECT_TRUE(hub_left_out(name, false, 4)) << name;
  for (const char* name : {"model.layers.3.linear_attn.A_log", "lm_head.weight", "model.visuals", "smtp.x"})
    EXPECT_FALSE(hub_left_out(name, false, 4)) << name;
}

}  // namespace
}  // namespace switchyard
