// Tests properties of every family in the registry, so a new family without its config.json here fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "models/families/common.h"
#include "models/families/hub_tensors.h"
#include "models/parameters.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

// What a config.json may say and a family cannot honour: the value, at the key that the error names.
struct Unknown {
  std::string key;
  Json value;
};

struct FamilyCase {
  Json config;                    // what its config.json has beside `shared_fields`
  std::vector<Unknown> unknowns;  // beside those that no family can honour
};

const Json shared_fields = {{"hidden_act", "silu"},     {"hidden_size", 64},
                            {"intermediate_size", 96},  {"num_hidden_layers", 2},
                            {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                            {"vocab_size", 256},        {"rms_norm_eps", 1e-5},
                            {"rope_theta", 10000},      {"max_position_embeddings", 512}};

const std::vector<Unknown> no_family_has = {{"hidden_act", "gelu"},
                                            {"mlp_bias", true},
                                            {"attention_dropout", 0.1},
                                            {"router_jitter_noise", 0.1},
                                            {"is_causal", false},
                                            {"rms_norm_eps", -1.0},
                                            {"layer_types", "full_attention"},
                                            {"layer_types", {"full_attention"}},
                                            {"layer_types", {{"0", "full_attention"}}},
                                            {"layer_types", {"full_attention", 1}},
                                            {"num_attention_heads", {4, 4}},
                                            {"num_key_value_heads", {2, 1}},
                                            {"intermediate_size", {96, 48}},
                                            {"rms_norm_eps", {1e-5, 1e-6}}};

std::map<std::string, FamilyCase> family_cases() {
  const Unknown types{"layer_types", {"full_attention", "sliding_attention"}},
      use{"use_sliding_window", true}, bias{"attention_bias", true}, part{"partial_rotary_factor", 0.5},
      too_much{"partial_rotary_factor", 1.5};
  const Json latent = {
      {"kv_lora_rank", 32},    {"qk_nope_head_dim", 24},     {"qk_rope_head_dim", 16},     {"v_head_dim", 20},
      {"n_routed_experts", 8}, {"first_k_dense_replace", 1}, {"n_shared_experts", 1},      {"n_group", 1},
      {"topk_group", 1},       {"num_experts_per_tok", 2},   {"moe_intermediate_size", 16}};
  Json of_mistral4 = latent;
  of_mistral4["rope_parameters"] = {{"rope_type", "default"},
                                    {"rope_theta", 10000},
                                    {"llama_4_scaling_beta", 0.1},
                                    {"original_max_position_embeddings", 64}};
  const Unknown rope_scaling{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}};
  const std::vector<Unknown> third = {{"moe_layer_freq", 2},        {"moe_layer_freq", {0, 1}},
                                      {"first_k_dense_replace", 2}, {"first_k_dense_replace", {0, 1}},
                                      {"scoring_func", "softmax"},  {"topk_method", "greedy"},
                                      {"num_local_experts", 4}};
  Json later = latent;
  later.update({{"norm_topk_prob", true}, {"routed_scaling_factor", 1.5}});
  Json later_full = later;  // with full attention
  for (const char* field : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"})
    later_full.erase(field);
  Json indexed = latent;
  indexed.update({{"q_lora_rank", 40}, {"index_n_heads", 4}, {"index_head_dim", 24}, {"index_topk", 8}});
  std::vector<Unknown> of_indexed = third;
  of_indexed.push_back({"rope_interleave", false});
  of_indexed.push_back({"layer_types", {"full_attention", "full_attention"}});
  of_indexed.push_back({"mlp_layer_types", {"dense", "dense"}});
  of_indexed.push_back({"mlp_layer_types", {"dense"}});
  std::vector<Unknown> of_shared = of_indexed;
  of_shared.push_back({"indexer_types", {"shared", "full"}});
  of_shared.push_back({"indexer_types", {"full", "other"}});
  of_shared.push_back({"indexer_types", {"full"}});
  of_shared.push_back({"indexer_types", "full"});
  of_shared.push_back({"index_topk_pattern", "F"});
  of_shared.push_back({"index_topk_pattern", "SF"});
  of_shared.push_back({"index_topk_pattern", "FX"});
  of_shared.push_back({"indexer_rope_interleave", false});
  return {
      {"llama", {Json::object(), {part, types, use}}},
      {"mistral",
       {Json::object(), {bias, part, {"layer_types", {"full_attention", "chunked_attention"}}, use}}},
      {"mixtral",
       {{{"num_local_experts", 8}, {"num_experts_per_tok", 2}},
        {bias, types, use, {"num_experts_per_tok", 9}, {"num_experts", 4}}}},
      {"qwen2", {Json::object(), {part, types}}},
      {"qwen2_moe",
       {{{"num_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 32},
         {"shared_expert_intermediate_size", 48}},
        {part,
         types,
         {"decoder_sparse_step", 3},
         {"mlp_only_layers", {0, 1}},
         {"shared_expert_intermediate_size", 0},
         {"num_experts_per_tok", 9}}}},
      {"qwen3", {Json::object(), {part}}},
      {"qwen3_moe",
       {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}},
        {part,
         {"decoder_sparse_step", 3},
         {"mlp_only_layers", {0, 1}},
         {"mlp_only_layers", {2}},
         {"mlp_only_layers", {-1}},
         {"mlp_only_layers", {true}},
         {"mlp_only_layers", 0},
         {"mlp_only_layers", {{"0", 0}}},
         {"num_local_experts", 4},
         {"num_experts_per_tok", 9}}}},
      {"qwen3_vl_moe_text",
       {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}},
        {part, {"norm_topk_prob", false}, {"decoder_sparse_step", 3}}}},
      {"deepseek_v2",
       {latent,
        {{"moe_layer_freq", 2},
         {"moe_layer_freq", {0, 1}},
         {"scoring_func", "sigmoid"},
         {"topk_method", "noaux_tc"},
         {"norm_topk_prob", true}}}},
      {"deepseek_v3", {latent, third}},
      {"kimi_k2", {latent, third}},
      {"deepseek_v32", {indexed, of_indexed}},
      {"glm_moe_dsa", {indexed, of_shared}},
      {"glm4_moe",
       {later_full, {{"first_k_dense_replace", 5}, too_much, types, use, {"scoring_func", "softmax"}}}},
      {"glm4_moe_lite",
       {later,
        {part,
         {"mlp_layer_types", {"dense", "dense"}},
         {"mlp_layer_types", {"dense", "other"}},
         {"mlp_layer_types", {"sparse"}},
         {"mlp_layer_types", "sparse"},
         {"head_dim", 24}}}},
      {"olmoe",
       {{{"num_experts", 8}, {"num_experts_per_tok", 2}},
        {part, types, use, {"clip_qkv", -1.0}, {"clip_qkv", 0}, {"num_experts_per_tok", 9}}}},
      {"qwen3_next",
       {{{"num_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 32},
         {"shared_expert_intermediate_size", 48},
         {"head_dim", 32},
         {"layer_types", {"full_attention", "linear_attention"}},
         {"linear_num_key_heads", 2},
         {"linear_num_value_heads", 4},
         {"linear_key_head_dim", 16},
         {"linear_value_head_dim", 12}},
        {bias,
         too_much,
         types,
         use,
         {"linear_num_value_heads", 3},
         {"linear_conv_kernel_dim", 9},
         {"shared_expert_intermediate_size", 0},
         {"num_experts_per_tok", 9}}}},
      {"qwen3_5_moe_text",
       {{{"num_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 32},
         {"shared_expert_intermediate_size", 48},
         {"head_dim", 32},
         {"layer_types", {"full_attention", "linear_attention"}},
         {"linear_num_key_heads", 2},
         {"linear_num_value_heads", 4}},
        {bias,
         too_much,
         types,
         use,
         {"norm_topk_prob", false},
         {"mlp_only_layers", {0}},
         {"decoder_sparse_step", 2}}}},
      {"qwen3_5_text",
       {{{"head_dim", 32},
         {"layer_types", {"full_attention", "linear_attention"}},
         {"linear_num_key_heads", 2},
         {"linear_num_value_heads", 4}},
        {bias, too_much, types, use, {"attn_output_gate", false}, {"linear_conv_kernel_dim", 9}}}},
      {"hy_v3",
       {{{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}},
        {bias,
         part,
         types,
         use,
         {"mlp_layer_types", {"dense", "dense"}},
         {"mlp_layer_types", {"dense"}},
         {"num_experts_per_tok", 9}}}},
      {"ernie4_5_moe",
       {{{"moe_num_experts", 8}, {"moe_k", 2}, {"moe_intermediate_size", 16}, {"moe_num_shared_experts", 2}},
        {part,
         types,
         {"use_bias", true},
         {"moe_norm_min", 1e-6},
         {"moe_layer_interval", 0},
         {"moe_layer_start_index", 2}}}},
      {"gpt_oss",
       {{{"num_local_experts", 8},
         {"num_experts_per_tok", 2},
         {"sliding_window", 128},
         {"attention_bias", true}},
        {part, {"layer_types", {"sliding_attention", "other"}}, {"swiglu_limit", 0}, {"sliding_window", 0}}}},
      {"llama4_text",
       {{{"num_local_experts", 8},
         {"num_experts_per_tok", 1},
         {"intermediate_size_mlp", 48},
         {"interleave_moe_layer_step", 2},
         {"no_rope_layer_interval", 2},
         {"attention_chunk_size", 64}},
        {part,
         {"no_rope_layers", {0, 2}},
         {"no_rope_layers", {1}},
         {"no_rope_layers", "all"},
         {"layer_types", {"full_attention", "full_attention"}},
         {"layer_types", {"chunked_attention", "sliding_attention"}},
         {"attention_chunk_size", 0},
         {"attn_scale", 0},
         {"floor_scale", 0},
         {"moe_layers", {2}},
         {"moe_layers", Json::array()},
         {"interleave_moe_layer_step", 3},
         {"num_experts_per_tok", 9}}}},
      {"mistral4",
       {of_mistral4,
        {{"first_k_dense_replace", 2},
         {"n_group", 3},
         {"num_local_experts", 4},
         {"num_experts_per_tok", 9}}}},
      {"mimo_v2_flash",
       {{{"n_routed_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 16},
         {"head_dim", 16},
         {"v_head_dim", 8},
         {"partial_rotary_factor", 0.25},
         {"sliding_window", 8},
         {"layer_types", {"full_attention", "sliding_attention"}}},
        {too_much,
         rope_scaling,
         {"swa_head_dim", 8},
         {"swa_num_attention_heads", 8},
         {"n_shared_experts", 1},
         {"add_full_attention_sink_bias", true},
         {"attention_value_scale", 0},
         {"mlp_layer_types", {"dense", "dense"}},
         {"num_experts_per_tok", 9}}}},
      {"laguna",
       {{{"num_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 16},
         {"shared_expert_intermediate_size", 24},
         {"head_dim", 16},
         {"sliding_window", 8},
         {"layer_types", {"full_attention", "sliding_attention"}},
         {"num_attention_heads_per_layer", {4, 6}},
         {"rope_parameters", {{"rope_theta", 10000}}}},
        {bias,
         rope_scaling,
         {"gating", false},
         {"num_attention_heads_per_layer", {4}},
         {"num_attention_heads_per_layer", {4, 0}},
         {"moe_router_logit_softcapping", 5.0},
         {"moe_apply_router_weight_on_input", true},
         {"mlp_layer_types", {"dense", "dense"}},
         {"num_experts_per_tok", 9}}}},
      {"step3p5",
       {{{"n_routed_experts", 8},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 16},
         {"share_expert_dim", 24},
         {"head_dim", 16},
         {"sliding_window", 8},
         {"layer_types", {"full_attention", "sliding_attention"}},
         {"num_sliding_attention_heads", 6},
         {"moe_layers_enum", "1"},
         {"swiglu_limits", {nullptr, 7}}},
        {bias,
         {"gating", false},
         {"query_pre_attn_scalar", 8},
         {"moe_layers_enum", "one"},
         {"moe_layers_enum", "2"},
         {"mlp_layer_types", {"dense", "dense"}},
         {"swiglu_limits", {7}},
         {"swiglu_limits_shared", {-1, 7}},
         {"rope_theta", {1e4, 1e4, 1e4}},
         {"per_layer_config", {{"0", {{"num_attention_heads", 6}}}}},
         {"num_experts_per_tok", 9}}}},
      {"minimax_m2",
       {{{"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"rotary_dim", 8}},
        {bias,
         {"rotary_dim", 200},
         {"scoring_func", "softmax"},
         {"use_qk_norm", false},
         {"qk_norm_type", "per_head"},
         {"use_routing_bias", false},
         {"shared_intermediate_size", 32},
         {"attn_type_list", {1, 0}},
         {"attn_type_list", {1}},
         {"attn_type_list", 1},
         {"num_experts_per_tok", 9}}}}};
}

// The smallest config.json of a family; a family without one is a failure.
Json config_of_family(const ModelFamily& family) {
  Json config = shared_fields;
  config.update(family_cases().at(std::string(family.type)).config);
  config["model_type"] = family.type;
  return config;
}

TEST(ModelFamilies, EachHasATypeOfItsOwn) {
  std::set<std::string_view> types;
  for (const ModelFamily* family : model_families()) {
    SCOPED_TRACE(std::string(family->type));
    EXPECT_TRUE(types.insert(family->type).second);
    EXPECT_EQ(&family_of({{"model_type", family->type}}), family);
    EXPECT_TRUE(family->architecture.ends_with("ForCausalLM"));
    EXPECT_EQ(&decoder_block(std::string(family->block->name)), family->block);
    EXPECT_TRUE(family->read != nullptr && family->write != nullptr && family->writes != nullptr);
  }
  EXPECT_EQ(types.size(), family_cases().size());
}

// A model read from a config.json is written as the same type, but for those that are
// another's under a new name.
TEST(ModelFamilies, EachIsWrittenAsItself) {
  for (const ModelFamily* family : model_families()) {
    SCOPED_TRACE(std::string(family->type));
    const Config config = config_of_hub(config_of_family(*family));
    const ModelFamily& written = family_to_write(config, model_config(config));
    if (family->type == "kimi_k2")
      EXPECT_EQ(&written, &kDeepseekV3);
    else if (family->type == "qwen3_vl_moe_text")
      EXPECT_EQ(&written, &kQwen3Moe);
    else
      EXPECT_EQ(&written, family);
  }
}

TEST(ModelFamilies, RefuseWhatTheyCannotHonourInOneLine) {
  for (const ModelFamily* family : model_families()) {
    const Json config = config_of_family(*family);
    ASSERT_NO_THROW(config_from_hub(config)) << family->type;
    std::vector<Unknown> unknowns = no_family_has;
    const std::vector<Unknown> own = family_cases().at(std::string(family->type)).unknowns;
    unknowns.insert(unknowns.end(), own.begin(), own.end());
    for (const Unknown& unknown : unknowns) {
      Json other = config;
      other[unknown.key] = unknown.value;
      const std::string named = unknown.key + "=" + unknown.value.dump();
      try {
        config_from_hub(other);
        ADD_FAILURE() << family->type << " takes " << named;
      } catch (const Error& e) {
        const std::string message = e.what();
        EXPECT_EQ(e.kind(), Error::Kind::usage) << message;
        EXPECT_NE(message.find(named), std::string::npos) << family->type << ": " << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      }
    }
  }
}

// Routers that a family's class has in float32, whatever the model's type is; and norms of latents, which its
// class builds with an epsilon of its own.
TEST(ModelFamilies, RoutersAndLatentsAreAsTheirClassesHaveThem) {
  const std::set<std::string_view> exact_routers{
      "deepseek_v2", "deepseek_v3",   "kimi_k2", "deepseek_v32", "glm_moe_dsa",
      "glm4_moe",    "glm4_moe_lite", "hy_v3",   "ernie4_5_moe", "mimo_v2_flash"};
  for (const ModelFamily* family : model_families()) {
    SCOPED_TRACE(std::string(family->type));
    Json config = config_of_family(*family);
    config["rms_norm_eps"] = 1e-3;
    const ConfigKeys keys = config_from_hub(config);
    const Config read = Config::from_map(keys, {});
    EXPECT_EQ(read.get_bool("float32_gate_logits"), exact_routers.contains(family->type));
    const std::vector<std::string> own{"float32_gate_logits=false"};
    EXPECT_FALSE(Config::from_map(keys, own).get_bool("float32_gate_logits"));
    const ModelConfig model = model_config(read);
    EXPECT_EQ(model.norm_epsilon, 1e-3f);
    EXPECT_EQ(model.attention().latent_norm_epsilon, model.attention().mla ? 1e-6f : 1e-3f);
  }
}

// A field that is absent, null, or beside another means what each family's class in
// transformers takes it for.
TEST(ModelFamilies, FieldsHaveTheMeaningsOfTheirClasses) {
  const Json absent = "absent";
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const struct {
    const char* type;
    Json fields;  // added to the smallest config.json; "absent": taken away
    const char* key;
    Json value;
  } cases[] = {
      {"qwen3", {{"head_dim", absent}}, "head_dim", 128},
      {"qwen3_moe", {{"head_dim", absent}}, "head_dim", 16},
      {"qwen3_vl_moe_text", {{"head_dim", absent}}, "head_dim", 16},
      {"glm4_moe", {{"head_dim", absent}}, "head_dim", 16},
      {"gpt_oss", {{"head_dim", absent}}, "head_dim", 64},
      {"llama4_text", {{"head_dim", absent}}, "head_dim", 128},
      {"minimax_m2", {{"head_dim", absent}}, "head_dim", 128},
      {"qwen3_next", {{"head_dim", absent}}, "head_dim", 256},
      {"mistral", {{"max_position_embeddings", 8192}}, "sliding_window_size", 4096},
      {"mistral",
       {{"max_position_embeddings", 8192}, {"sliding_window", nullptr}},
       "sliding_window_size",
       absent},
      {"mixtral", {{"max_position_embeddings", 8192}}, "sliding_window_size", absent},
      {"llama4_text", {{"attention_chunk_size", absent}}, "chunk_attn_window_size", 8192},
      {"llama4_text", {{"attention_chunk_size", nullptr}}, "chunk_attn_window_size", 0},
      {"minimax_m2", {{"rotary_dim", 32}}, "partial_rotary_factor", 0.25},
      {"minimax_m2", {{"rotary_dim", 32}, {"partial_rotary_factor", 0.5}}, "partial_rotary_factor", 0.5},
      {"minimax_m2",
       {{"rotary_dim", 32}, {"rope_parameters", {{"partial_rotary_factor", 0.75}}}},
       "partial_rotary_factor",
       0.75},
      {"glm4_moe", Json::object(), "partial_rotary_factor", 0.5},
      {"glm4_moe", {{"partial_rotary_factor", nullptr}}, "partial_rotary_factor", 1},
      {"qwen3_next", Json::object(), "partial_rotary_factor", 0.25},
      {"qwen3_next", {{"partial_rotary_factor", nullptr}}, "partial_rotary_factor", 1},
      {"gpt_oss", Json::object(), "rope_type", "yarn"},
      {"gpt_oss", Json::object(), "rope_factor", 32},
      {"gpt_oss", Json::object(), "rope_truncate", false},
      {"gpt_oss", {{"rope_theta", absent}}, "rope_max_timescale", 150000},
      {"gpt_oss", {{"rope_parameters", Json::object()}}, "rope_type", "default"},
      {"gpt_oss", {{"rope_scaling", llama3}}, "rope_type", "llama3.1"},
      {"deepseek_v3", {{"rope_interleave", nullptr}}, "rope_interleave", false},
      {"deepseek_v3", {{"rope_interleave", false}}, "rope_interleave", false},
      {"glm4_moe_lite", {{"rope_interleave", false}}, "rope_interleave", false},
      {"deepseek_v2", {{"rope_interleave", false}}, "rope_interleave", true},  // its class has no such field
      {"deepseek_v3", Json::object(), "norm_topk_prob", true},
      {"deepseek_v3", {{"norm_topk_prob", nullptr}}, "norm_topk_prob", false},
      {"deepseek_v3", {{"rope_scaling", llama3}}, "mscale", 0},  // no scores are scaled
      {"mixtral", {{"num_experts", 8}}, "num_experts", 8},
      {"gpt_oss", {{"num_experts", 8}}, "num_experts", 8},
      {"deepseek_v3", {{"num_local_experts", 8}}, "num_experts", 8},
      {"glm4_moe_lite", {{"head_dim", 16}}, "qk_rope_head_dim", 16},
      {"glm_moe_dsa", {{"indexer_types", {"full", "shared"}}}, "shared_choice_layers", Json::array({1})},
      {"glm_moe_dsa", {{"index_topk_pattern", "FS"}}, "shared_choice_layers", Json::array({1})},
      {"glm_moe_dsa",
       {{"num_hidden_layers", 6}, {"index_topk_freq", 3}},
       "shared_choice_layers",
       Json::array({2, 3, 5})},
      {"glm_moe_dsa",
       {{"num_hidden_layers", 6}, {"index_topk_freq", 2}, {"index_skip_topk_offset", 1}},
       "shared_choice_layers",
       Json::array({1, 3, 5})},
      {"mistral4", Json::object(), "temperature_tuning_floor_scale", 64},
      {"mimo_v2_flash", {{"attention_value_scale", absent}}, "attention_value_scale", 0.707},
      {"mimo_v2_flash", {{"attention_value_scale", nullptr}}, "attention_value_scale", 1},
      {"mimo_v2_flash",
       {{"sliding_window", absent}, {"sliding_window_size", 7}},  // keys before a token's own
       "attention_kinds",
       {{"full_attention", Json::object()},
        {"sliding_attention",
         {{"attention_sink", true}, {"base_num_kv_heads", 4}, {"sliding_window_size", 8}}}}},
      {"mimo_v2_flash",
       {{"layer_types", absent}, {"hybrid_layer_pattern", {1, 0}}},
       "layer_kinds",
       {"sliding_attention", "full_attention"}},
      {"mimo_v2_flash", {{"moe_layer_freq", {0, 1}}}, "moe_layers", Json::array({1})},
      {"mimo_v2_flash",
       {{"rms_norm_eps", absent}, {"layernorm_epsilon", 1e-4}},
       "normalization_layer_epsilon",
       1e-4},
      {"laguna", {{"gating", "per-element"}}, "attention_gate", "value"},
      {"laguna", Json::object(), "base_num_query_heads", 4},
      {"step3p5",
       {{"num_nextn_predict_layers", 1}, {"swiglu_limits", {0, 7, 9}}},  // the last is a draft layer's
       "expert_gate_limits",
       {0, 7}},
      {"step3p5",
       {{"num_sliding_attention_heads", absent}, {"attention_other_setting", {{"num_attention_heads", 8}}}},
       "attention_kinds",
       {{"full_attention", Json::object()},
        {"sliding_attention", {{"base_num_query_heads", 8}, {"sliding_window_size", 8}}}}},
  };
  for (const auto& [type, fields, key, value] : cases) {
    SCOPED_TRACE(std::string(type) + " " + fields.dump());
    Json config = config_of_family(family_of({{"model_type", type}}));
    for (const auto& [field, given] : fields.items()) {
      config[field] = given;
      if (given == absent) config.erase(field);
    }
    const ConfigKeys keys = config_from_hub(config);
    const auto found = keys.find(key);
    EXPECT_EQ(found == keys.end() ? absent : found->second, value) << key;
  }
}

// A value that is not the one a field may have.
Json another(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() + 1;
  return "another";
}

void for_all_fields(const HubFields& fields, const std::function<void(const HubFields&)>& each) {
  each(fields);
  for (const HubFields* const more : fields.more) {
    if (more != nullptr) for_all_fields(*more, each);
  }
}

TEST(ModelFamilies, AFieldIsReadRefusedOrNamed) {
  for (const ModelFamily* family : model_families()) {
    SCOPED_TRACE(std::string(family->type));
    Json config = config_of_family(*family);
    EXPECT_EQ(unknown_fields_notice(config), "");
    const auto check = [&](const HubFields& fields) {
      for (const FixedField& field : fields.refused) {
        Json other = config;
        other[std::string(field.key)] = Json::parse(field.value);
        EXPECT_NO_THROW(config_from_hub(other)) << field.key;
        other[std::string(field.key)] = another(Json::parse(field.value));
        try {
          config_from_hub(other);
          ADD_FAILURE() << field.key << " is taken";
        } catch (const Error& e) {
          const std::string message = e.what();
          EXPECT_EQ(e.kind(), Error::Kind::usage) << message;
          EXPECT_NE(message.find(std::string(field.key) + "="), std::string::npos) << message;
          EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        }
        EXPECT_EQ(unknown_fields_notice(other), "");
      }
    };
    check(common_fields());
    for_all_fields(family->fields, check);
    config["a_field_of_nobody"] = 7;
    config["another_one"] = "x\n";
    config["and_none"] = nullptr;
    config["rope_scaling"] = {{"rope_type", "default"}, {"twist", 2}};
    const std::string line = unknown_fields_notice(config);
    for (const char* name : {"\"a_field_of_nobody\"", "\"another_one\"", "\"rope_scaling.twist\""})
      EXPECT_NE(line.find(name), std::string::npos) << line;
    EXPECT_EQ(line.find("and_none"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    const bool by_kind = std::ranges::any_of(
        family->fields.refused, [](const FixedField& field) { return field.key == "rope_scaling"; });
    if (by_kind) config.erase("rope_scaling");
    EXPECT_NO_THROW(config_from_hub(config));
  }
}

// No two tensors of a model have one name, and a family renames only what its models have.
TEST(ModelFamilies, NamesOfTensorsAreTheirOwn) {
  for (const ModelFamily* family : model_families()) {
    SCOPED_TRACE(std::string(family->type));
    std::set<std::string> names, parameters;
    for (const ParameterSpec& spec :
         parameter_specs(model_config(config_of_hub(config_of_family(*family))))) {
      parameters.insert(spec.name);
      for (const std::string& name : hub_tensors(*family, spec.name, spec.shape).names)
        EXPECT_TRUE(names.insert(name).second) << name;
    }
    for (const TensorRule& rule : family->tensors)
      EXPECT_TRUE(parameters.contains("layers.0." + std::string(rule.ours)) ||
                  parameters.contains("layers.1." + std::string(rule.ours)))
          << rule.ours;
  }
}

}  // namespace
}  // namespace switchyard
