// Tests the config.json of well-known models in full size: it gives the right model here, and the tensors
// asked for match the published ones in count and in elements.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "convert/stored_names.h"
#include "core/error.h"
#include "models/families/hub_tensors.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using nlohmann::json;

json changed(json config, const json& more) {
  config.update(more);
  return config;
}

json llama31(std::int64_t layers, std::int64_t width, std::int64_t mlp, std::int64_t heads) {
  return changed(
      json::parse(R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "bos_token_id":128000,"eos_token_id":128001,"hidden_act":"silu","initializer_range":0.02,
      "max_position_embeddings":131072,"mlp_bias":false,"model_type":"llama","num_key_value_heads":8,
      "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,
      "high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},"rope_theta":500000.0,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","transformers_version":"4.43.0.dev0",
      "use_cache":true,"vocab_size":128256})"),
      {{"num_hidden_layers", layers},
       {"hidden_size", width},
       {"intermediate_size", mlp},
       {"num_attention_heads", heads}});
}

json mistral() {
  return json::parse(R"({"architectures":["MistralForCausalLM"],"attention_dropout":0.0,"bos_token_id":1,
      "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,
      "max_position_embeddings":32768,"model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,
      "num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"sliding_window":null,
      "tie_word_embeddings":false,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":32768})");
}

json mixtral() {
  return changed(mistral(), json::parse(R"({"architectures":["MixtralForCausalLM"],"model_type":"mixtral",
      "num_experts_per_tok":2,"num_local_experts":8,"output_router_logits":false,"router_aux_loss_coef":0.02,
      "vocab_size":32000})"));
}

json qwen3(std::int64_t layers, std::int64_t width, std::int64_t mlp, std::int64_t heads, bool tied) {
  return changed(
      json::parse(R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "bos_token_id":151643,"eos_token_id":151645,"head_dim":128,"hidden_act":"silu","initializer_range":0.02,
      "max_position_embeddings":40960,"model_type":"qwen3","num_key_value_heads":8,"rms_norm_eps":1e-06,
      "rope_scaling":null,"rope_theta":1000000,"sliding_window":null,"torch_dtype":"bfloat16","use_cache":true,
      "use_sliding_window":false,"vocab_size":151936})"),
      {{"num_hidden_layers", layers},
       {"hidden_size", width},
       {"intermediate_size", mlp},
       {"max_window_layers", layers},
       {"num_attention_heads", heads},
       {"tie_word_embeddings", tied}});
}

json qwen3_moe(std::int64_t layers, std::int64_t width, std::int64_t mlp, std::int64_t heads, json more) {
  json config = changed(qwen3(layers, width, mlp, heads, false), json::parse(R"({"model_type":"qwen3_moe",
      "architectures":["Qwen3MoeForCausalLM"],"decoder_sparse_step":1,"mlp_only_layers":[],"norm_topk_prob":true,
      "num_experts":128,"num_experts_per_tok":8,"output_router_logits":false,"router_aux_loss_coef":0.001})"));
  return changed(config, more);
}

json deepseek2_lite() {
  return json::parse(
      R"({"architectures":["DeepseekV2ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "auto_map":{"AutoConfig":"configuration_deepseek.DeepseekV2Config"},"aux_loss_alpha":0.001,
      "bos_token_id":100000,"eos_token_id":100001,"first_k_dense_replace":1,"hidden_act":"silu",
      "hidden_size":2048,"initializer_range":0.02,"intermediate_size":10944,"kv_lora_rank":512,
      "max_position_embeddings":163840,"model_type":"deepseek_v2","moe_intermediate_size":1408,"moe_layer_freq":1,
      "n_group":1,"n_routed_experts":64,"n_shared_experts":2,"norm_topk_prob":false,"num_attention_heads":16,
      "num_experts_per_tok":6,"num_hidden_layers":27,"num_key_value_heads":16,"pretraining_tp":1,
      "q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,"rope_scaling":{
      "beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,
      "original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000,"routed_scaling_factor":1.0,
      "scoring_func":"softmax","seq_aux":true,"tie_word_embeddings":false,"topk_group":1,"topk_method":"greedy",
      "torch_dtype":"bfloat16","use_cache":true,"v_head_dim":128,"vocab_size":102400})");
}

json deepseek2() {
  return changed(deepseek2_lite(), json::parse(R"({"hidden_size":5120,"intermediate_size":12288,"n_group":8,
      "moe_intermediate_size":1536,"n_routed_experts":160,"num_attention_heads":128,"num_hidden_layers":60,
      "num_key_value_heads":128,"q_lora_rank":1536,"routed_scaling_factor":16.0,"topk_group":3,
      "topk_method":"group_limited_greedy"})"));
}

json deepseek3() {
  json config =
      changed(deepseek2(), json::parse(R"({"architectures":["DeepseekV3ForCausalLM"],"bos_token_id":0,
      "eos_token_id":1,"ep_size":1,"first_k_dense_replace":3,"hidden_size":7168,"intermediate_size":18432,
      "model_type":"deepseek_v3","moe_intermediate_size":2048,"n_routed_experts":256,"n_shared_experts":1,
      "norm_topk_prob":true,"num_experts_per_tok":8,"num_hidden_layers":61,"num_nextn_predict_layers":1,
      "quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8",
      "weight_block_size":[128,128]},"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_group":4,
      "topk_method":"noaux_tc","vocab_size":129280})"));
  config["rope_scaling"].update(json{{"mscale", 1.0}, {"mscale_all_dim", 1.0}});
  return config;
}

json deepseek32() {
  return changed(deepseek3(), json::parse(R"({"architectures":["DeepseekV32ForCausalLM"],"index_head_dim":128,
      "index_n_heads":64,"index_topk":2048,"model_type":"deepseek_v32"})"));
}

json kimi_k2() {
  json config =
      changed(deepseek3(), json::parse(R"({"bos_token_id":163584,"eos_token_id":163585,"model_type":"kimi_k2",
      "first_k_dense_replace":1,"max_position_embeddings":131072,"n_group":1,"n_routed_experts":384,
      "num_attention_heads":64,"num_key_value_heads":64,"num_nextn_predict_layers":0,"rope_theta":50000.0,
      "routed_scaling_factor":2.827,"topk_group":1,"vocab_size":163840})"));
  config["rope_scaling"].update(json{{"beta_fast", 1.0}, {"beta_slow", 1.0}, {"factor", 32.0}});
  return config;
}

json glm45(std::int64_t layers, std::int64_t width, const json& more) {
  return changed(json::parse(R"({"architectures":["Glm4MoeForCausalLM"],"attention_bias":true,
      "attention_dropout":0.0,"first_k_dense_replace":3,"head_dim":128,"hidden_act":"silu","initializer_range":0.02,
      "intermediate_size":12288,"max_position_embeddings":131072,"model_type":"glm4_moe",
      "moe_intermediate_size":1536,"n_group":1,"n_routed_experts":160,"n_shared_experts":1,"norm_topk_prob":true,
      "num_attention_heads":96,"num_experts_per_tok":8,"num_key_value_heads":8,"num_nextn_predict_layers":1,
      "partial_rotary_factor":0.5,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000,
      "routed_scaling_factor":2.5,"tie_word_embeddings":false,"topk_group":1,"torch_dtype":"bfloat16",
      "use_cache":true,"use_qk_norm":true,"vocab_size":151552})"),
                 changed({{"num_hidden_layers", layers}, {"hidden_size", width}}, more));
}

json glm47_flash() {
  return json::parse(R"({"architectures":["Glm4MoeLiteForCausalLM"],"attention_bias":false,
      "attention_dropout":0.0,"first_k_dense_replace":1,"hidden_act":"silu","hidden_size":2048,
      "intermediate_size":10240,"kv_lora_rank":512,"max_position_embeddings":202752,"model_type":"glm4_moe_lite",
      "moe_intermediate_size":1536,"n_group":1,"n_routed_experts":64,"n_shared_experts":1,"norm_topk_prob":true,
      "num_attention_heads":20,"num_experts_per_tok":4,"num_hidden_layers":47,"num_key_value_heads":20,
      "num_nextn_predict_layers":1,"partial_rotary_factor":1.0,"q_lora_rank":768,"qk_nope_head_dim":192,
      "qk_rope_head_dim":64,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000,
      "routed_scaling_factor":1.8,"tie_word_embeddings":false,"topk_group":1,"topk_method":"noaux_tc",
      "v_head_dim":256,"vocab_size":154880})");
}

json minimax_m2() {
  return changed(
      json::parse(R"({"architectures":["MiniMaxM2ForCausalLM"],"attention_dropout":0.0,"head_dim":128,
      "hidden_act":"silu","hidden_size":3072,"intermediate_size":1536,"max_position_embeddings":196608,
      "model_type":"minimax_m2","mtp_transformer_layers":1,"num_attention_heads":48,"num_experts_per_tok":8,
      "num_hidden_layers":62,"num_key_value_heads":8,"num_local_experts":256,"num_mtp_modules":3,
      "qk_norm_type":"per_layer","rms_norm_eps":1e-06,"rope_theta":5000000,"rotary_dim":64,"scoring_func":"sigmoid",
      "shared_intermediate_size":0,"tie_word_embeddings":false,"use_mtp":true,"use_qk_norm":true,
      "use_routing_bias":true,"vocab_size":200064,"quantization_config":{"activation_scheme":"dynamic",
      "fmt":"float8_e4m3fn","quant_method":"fp8","weight_block_size":[128,128]}})"),
      {{"attn_type_list", std::vector<int>(62, 1)}});
}

json gpt_oss(std::int64_t layers, std::int64_t experts) {
  json config =
      json::parse(R"({"architectures":["GptOssForCausalLM"],"attention_bias":true,"attention_dropout":0.0,
      "eos_token_id":200002,"experts_per_token":4,"head_dim":64,"hidden_act":"silu","hidden_size":2880,
      "initial_context_length":4096,"initializer_range":0.02,"intermediate_size":2880,
      "max_position_embeddings":131072,"model_type":"gpt_oss","num_attention_heads":64,"num_experts_per_tok":4,
      "num_key_value_heads":8,"output_router_logits":false,"pad_token_id":199999,"rms_norm_eps":1e-05,
      "rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":32.0,"original_max_position_embeddings":4096,
      "rope_type":"yarn","truncate":false},"rope_theta":150000,"router_aux_loss_coef":0.9,"sliding_window":128,
      "swiglu_limit":7.0,"tie_word_embeddings":false,"use_cache":true,"vocab_size":201088})");
  config["num_hidden_layers"] = layers;
  config["num_local_experts"] = experts;
  for (std::int64_t i = 0; i < layers; ++i)
    config["layer_types"].push_back(i % 2 == 0 ? "sliding_attention" : "full_attention");
  return config;
}

json olmoe() {
  return json::parse(R"({"architectures":["OlmoeForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "clip_qkv":null,"eos_token_id":50279,"hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,
      "intermediate_size":1024,"max_position_embeddings":4096,"model_type":"olmoe","norm_topk_prob":false,
      "num_attention_heads":16,"num_experts":64,"num_experts_per_tok":8,"num_hidden_layers":16,
      "num_key_value_heads":16,"output_router_logits":false,"pad_token_id":1,"rms_norm_eps":1e-05,
      "rope_scaling":null,"rope_theta":10000.0,"router_aux_loss_coef":0.01,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","use_cache":true,"vocab_size":50304})");
}

json qwen2(std::int64_t layers, std::int64_t width, std::int64_t mlp, std::int64_t heads, bool tied) {
  json config =
      json::parse(R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
      "eos_token_id":151643,"hidden_act":"silu","initializer_range":0.02,"max_position_embeddings":131072,
      "max_window_layers":28,"model_type":"qwen2","rms_norm_eps":1e-06,"rope_theta":1000000.0,
      "sliding_window":131072,"torch_dtype":"bfloat16","use_cache":true,"use_mrope":false,
      "use_sliding_window":false})");
  return changed(config, {{"num_hidden_layers", layers},
                          {"hidden_size", width},
                          {"intermediate_size", mlp},
                          {"num_attention_heads", heads},
                          {"num_key_value_heads", tied ? 2 : 4},
                          {"tie_word_embeddings", tied},
                          {"vocab_size", tied ? 151936 : 152064}});
}

json qwen15_moe() {
  return json::parse(
      R"({"architectures":["Qwen2MoeForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,
      "decoder_sparse_step":1,"eos_token_id":151643,"hidden_act":"silu","hidden_size":2048,
      "initializer_range":0.02,"intermediate_size":5632,"max_position_embeddings":8192,"max_window_layers":21,
      "model_type":"qwen2_moe","moe_intermediate_size":1408,"norm_topk_prob":false,"num_attention_heads":16,
      "num_experts":60,"num_experts_per_tok":4,"num_hidden_layers":24,"num_key_value_heads":16,
      "output_router_logits":false,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,
      "shared_expert_intermediate_size":5632,"sliding_window":32768,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","use_cache":true,"use_sliding_window":false,"vocab_size":151936})");
}

// Those that see images too: their decoder is in text_config.
json llama4(std::int64_t experts, std::int64_t step, bool long_context) {
  json text = json::parse(
      R"({"attention_bias":false,"attention_chunk_size":8192,"attention_dropout":0.0,"attn_scale":0.1,
      "attn_temperature_tuning":4,"bos_token_id":200000,"cache_implementation":"hybrid","floor_scale":8192,
      "for_llm_compressor":false,"head_dim":128,"hidden_act":"silu","hidden_size":5120,"initializer_range":0.02,
      "intermediate_size":8192,"intermediate_size_mlp":16384,"model_type":"llama4_text","no_rope_layers":[],
      "num_attention_heads":40,"num_experts_per_tok":1,"num_hidden_layers":48,"num_key_value_heads":8,
      "output_router_logits":false,"pad_token_id":200018,"rms_norm_eps":1e-05,"rope_scaling":null,
      "rope_theta":500000.0,"router_aux_loss_coef":0.001,"router_jitter_noise":0.0,"torch_dtype":"bfloat16",
      "use_cache":true,"vocab_size":202048})");
  text["num_local_experts"] = experts;
  text["interleave_moe_layer_step"] = step;
  text["use_qk_norm"] = long_context;
  text["max_position_embeddings"] = long_context ? 10485760 : 1048576;
  if (long_context)
    text["rope_scaling"] = json::parse(R"({"factor":16.0,"high_freq_factor":1.0,"low_freq_factor":1.0,
      "original_max_position_embeddings":8192,"rope_type":"llama3"})");
  return {{"architectures", {"Llama4ForConditionalGeneration"}},
          {"model_type", "llama4"},
          {"text_config", text},
          {"tie_word_embeddings", false},
          {"vision_config", {{"hidden_size", 1408}, {"model_type", "llama4_vision_model"}}}};
}

json qwen3_vl() {
  json text = json::parse(R"({"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
      "decoder_sparse_step":1,"dtype":"bfloat16","eos_token_id":151645,"head_dim":128,"hidden_act":"silu",
      "hidden_size":2048,"initializer_range":0.02,"intermediate_size":6144,"max_position_embeddings":262144,
      "mlp_only_layers":[],"model_type":"qwen3_vl_moe_text","moe_intermediate_size":768,"norm_topk_prob":true,
      "num_attention_heads":32,"num_experts":128,"num_experts_per_tok":8,"num_hidden_layers":48,
      "num_key_value_heads":4,"rms_norm_eps":1e-06,"rope_scaling":{"mrope_interleaved":true,
      "mrope_section":[24,20,20],"rope_type":"default"},"rope_theta":5000000,"use_cache":true,
      "vocab_size":151936})");
  return {{"architectures", {"Qwen3VLMoeForConditionalGeneration"}},
          {"model_type", "qwen3_vl_moe"},
          {"text_config", text},
          {"tie_word_embeddings", false},
          {"vision_config", {{"depth", 27}, {"model_type", "qwen3_vl_moe"}}}};
}

json qwen3_next() {
  return json::parse(
      R"({"architectures":["Qwen3NextForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
      "bos_token_id":151643,"decoder_sparse_step":1,"eos_token_id":151645,"full_attention_interval":4,"head_dim":256,
      "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"intermediate_size":5120,
      "linear_conv_kernel_dim":4,"linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,
      "linear_value_head_dim":128,"max_position_embeddings":262144,"mlp_only_layers":[],"model_type":"qwen3_next",
      "moe_intermediate_size":512,"norm_topk_prob":true,"num_attention_heads":16,"num_experts":512,
      "num_experts_per_tok":10,"num_hidden_layers":48,"num_key_value_heads":2,"output_router_logits":false,
      "partial_rotary_factor":0.25,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000000,
      "router_aux_loss_coef":0.001,"shared_expert_intermediate_size":512,"tie_word_embeddings":false,
      "torch_dtype":"bfloat16","use_cache":true,"use_sliding_window":false,"vocab_size":151936})");
}

// The decoder of a model that sees images, which are left aside.
json qwen35_moe() {
  json config =
      json::parse(R"({"architectures":["Qwen3_5MoeForConditionalGeneration"],"image_token_id":248056,
      "model_type":"qwen3_5_moe","text_config":{"attention_bias":false,"attention_dropout":0.0,
      "attn_output_gate":true,"dtype":"bfloat16","eos_token_id":248044,"full_attention_interval":4,"head_dim":256,
      "hidden_act":"silu","hidden_size":2048,"initializer_range":0.02,"linear_conv_kernel_dim":4,
      "linear_key_head_dim":128,"linear_num_key_heads":16,"linear_num_value_heads":32,"linear_value_head_dim":128,
      "max_position_embeddings":262144,"mlp_only_layers":[],"model_type":"qwen3_5_moe_text",
      "moe_intermediate_size":512,"num_attention_heads":16,"num_experts":256,"num_experts_per_tok":8,
      "num_hidden_layers":40,"num_key_value_heads":2,"rms_norm_eps":1e-06,"router_aux_loss_coef":0.001,
      "rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"partial_rotary_factor":0.25,
      "rope_theta":10000000,"rope_type":"default"},"shared_expert_intermediate_size":512,"use_cache":true,
      "vocab_size":248320},"tie_word_embeddings":false,"video_token_id":248057,
      "vision_config":{"depth":27,"hidden_size":1152,"model_type":"qwen3_5_moe"}})");
  json& text = config["text_config"];
  for (std::int64_t i = 0; i < text["num_hidden_layers"]; ++i)
    text["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
  return config;
}

struct Published {
  json config;
  std::int64_t tensors, parameters;  // as published, without multi-token prediction
  const char* model_name;            // of configs/models: the same model
  const char* differs = "";          // but for this key
};

std::map<std::string, Published> published() {
  return {{"Llama-3.1-8B", {llama31(32, 4096, 14336, 32), 291, 8'030'261'248, "llama3.1-8b", ""}},
          {"Llama-3.1-70B", {llama31(80, 8192, 28672, 64), 723, 70'553'706'496, "llama3.1-70b", ""}},
          {"Llama-3.1-405B", {llama31(126, 16384, 53248, 128), 1137, 405'853'388'800, "llama3.1-405b", ""}},
          {"Mistral-7B-v0.3", {mistral(), 291, 7'248'023'552, nullptr}},
          {"Mixtral-8x7B-v0.1", {mixtral(), 995, 46'702'792'704, "mixtral-8x7b"}},
          {"Mixtral-8x22B-v0.1",
           {changed(mixtral(), {{"hidden_size", 6144},
                                {"intermediate_size", 16384},
                                {"max_position_embeddings", 65536},
                                {"num_attention_heads", 48},
                                {"num_hidden_layers", 56}}),
            1739, 140'620'634'112, "mixtral-8x22b", "vocab_size"}},
          {"Qwen3-0.6B", {qwen3(28, 1024, 3072, 16, true), 310, 596'049'920, "qwen3-0.6b"}},
          {"Qwen3-8B", {qwen3(36, 4096, 12288, 32, false), 399, 8'190'735'360, "qwen3-8b"}},
          {"Qwen3-32B", {qwen3(64, 5120, 25600, 64, false), 707, 32'762'123'264, "qwen3-32b"}},
          {"Qwen2.5-1.5B", {qwen2(28, 1536, 8960, 12, true), 338, 1'543'714'304, "qwen2.5-1.5b"}},
          {"Qwen2.5-7B", {qwen2(28, 3584, 18944, 28, false), 339, 7'615'616'512, "qwen2.5-7b"}},
          {"Qwen1.5-MoE-A2.7B", {qwen15_moe(), 4659, 14'315'784'192, nullptr}},
          {"Qwen3-30B-A3B",
           {qwen3_moe(48, 2048, 6144, 32, {{"moe_intermediate_size", 768}, {"num_key_value_heads", 4}}),
            18867, 30'532'122'624, "qwen3-30b-a3b", "rope_max_timescale"}},
          {"Qwen3-235B-A22B",
           {qwen3_moe(94, 4096, 12288, 64, {{"moe_intermediate_size", 1536}, {"num_key_value_heads", 4}}),
            36945, 235'093'634'560, "qwen3-235b-a22b", "rope_max_timescale"}},
          {"DeepSeek-V2-Lite", {deepseek2_lite(), 5291, 15'706'484'224, "deepseek2-16b"}},
          {"DeepSeek-V2", {deepseek2(), 29102, 235'741'434'880, "deepseek2-236b", "n_routing_groups"}},
          {"DeepSeek-V3", {deepseek3(), 45395, 671'026'419'200, "deepseek3-671b", "n_routing_groups"}},
          {"DeepSeek-V3.2", {deepseek32(), 45700, 671'877'944'064, "deepseek3.2-671b", "n_routing_groups"}},
          {"Kimi-K2", {kimi_k2(), 69975, 1'026'408'232'448, "kimi-k2-1t"}},
          {"GLM-4.5", {glm45(92, 5120, json::object()), 44189, 352'797'829'024, "glm-4.5-355b"}},
          {"GLM-4.5-Air",
           {glm45(46, 4096,
                  {{"first_k_dense_replace", 1},
                   {"intermediate_size", 10944},
                   {"moe_intermediate_size", 1408},
                   {"n_routed_experts", 128},
                   {"routed_scaling_factor", 1.0},
                   {"use_qk_norm", false}}),
            17925, 106'852'251'264, "glm-4.5-air-106b"}},
          {"GLM-4.7-Flash", {glm47_flash(), 9491, 29'943'393'920, "glm-4.7-flash-30b"}},
          {"gpt-oss-20b", {gpt_oss(24, 32), 411, 20'914'757'184, "gpt-oss-20b"}},
          {"gpt-oss-120b", {gpt_oss(36, 128), 615, 116'829'156'672, "gpt-oss-120b"}},
          {"Llama-4-Scout-17B-16E", {llama4(16, 1, true), 579, 107'769'861'120, "llama4-17b-16e"}},
          {"Llama-4-Maverick-17B-128E", {llama4(128, 2, false), 507, 400'711'848'960, "llama4-17b-128e"}},
          {"Qwen3-VL-30B-A3B", {qwen3_vl(), 531, 30'532'122'624, "qwen3-30b-a3b", "rope_max_timescale"}},
          {"Qwen3-Next-80B-A3B", {qwen3_next(), 74391, 79'674'391'296, "qwen3-next-80b-a3b"}},
          {"Qwen3.5-35B-A3B", {qwen35_moe(), 693, 34'660'610'688, "qwen3.5-35b-a3b"}},
          {"OLMoE-1B-7B-0924", {olmoe(), 3219, 6'919'161'856, "olmoe-1b-7b"}},
          {"MiniMax-M2", {minimax_m2(), 48239, 228'689'764'864, "minimax-m2-230b"}}};
}

TEST(Published, TensorsAreThoseOfTheFiles) {
  for (const auto& [name, model] : published()) {
    SCOPED_TRACE(name);
    const ModelConfig ours = model_config(config_of_hub(model.config));
    std::set<std::string> names;
    std::int64_t parameters = 0;
    for (const StoredPair& pair : stored_pairs(parameter_specs(ours), family_of(model.config))) {
      const auto fused = fused_place(family_of(model.config), model.config, pair.theirs);
      names.insert(fused ? fused->fused : pair.theirs);
      parameters += num_elements(pair.hub.shape);
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(model.tensors));
    EXPECT_EQ(parameters, model.parameters);
  }
}

TEST(Published, HasNoFieldThatIsNotKnown) {
  for (const auto& [name, model] : published()) EXPECT_EQ(unknown_fields_notice(model.config), "") << name;
}

// With the prediction layer, and the embedding and the head that are stored with it again, the published
// files hold 685 and 358 thousand million elements.
TEST(Published, PredictionLayersAreThoseOfTheFiles) {
  for (const auto& [name, in_files] : {std::pair{"DeepSeek-V3", 684.5e9}, std::pair{"GLM-4.5", 358.3e9}}) {
    SCOPED_TRACE(name);
    const Published model = published().at(name);
    const auto every = [](const std::string&) { return true; };
    ASSERT_EQ(predictions_in(model.config, every), 1);
    EXPECT_EQ(predictions_in(model.config, [](const std::string&) { return false; }), 0);
    const ModelConfig ours = model_config(config_of_hub(model.config, 1));
    const std::string layer = fmt::format("model.layers.{}.", ours.layers);
    std::set<std::string> names;
    double parameters = 0;
    for (const StoredPair& pair : stored_pairs(parameter_specs(ours), family_of(model.config))) {
      if (pair.theirs.starts_with(layer)) names.insert(pair.theirs.substr(layer.size()));
      parameters += static_cast<double>(num_elements(pair.hub.shape));
    }
    for (const char* tensor : {"eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight",
                               "input_layernorm.weight", "mlp.gate.e_score_correction_bias",
                               "mlp.experts.0.down_proj.weight", "self_attn.o_proj.weight"})
      EXPECT_TRUE(names.contains(tensor)) << tensor;
    const double copies = 2 * static_cast<double>(ours.vocab * ours.emb);
    EXPECT_NEAR(parameters + copies, in_files, 0.3e9);
    for (const char* copy : {"embed_tokens.weight", "shared_head.head.weight"}) {
      const std::string notice = hub_left_out(layer + copy, false, ours.layers).value_or("");
      EXPECT_NE(notice.find("a copy of"), std::string::npos) << notice;
    }
  }
}

// Two descriptions of one model, of different origin. The reference leaves Llama's bands and DeepSeek's
// groups to the command line, and has the rotation of a later Qwen3.
TEST(Published, AreTheModelsOfOurFiles) {
  for (const auto& [name, model] : published()) {
    if (model.model_name == nullptr) continue;
    const std::vector<std::string> arguments{std::string("model_name=") + model.model_name};
    EXPECT_EQ(
        differing_key(model_config(config_of_hub(model.config)), model_config(Config::from_args(arguments))),
        model.differs)
        << name;
  }
}

TEST(Published, WhatIsNotComputedHereIsNamed) {
  const json qwen = published().at("Qwen3-30B-A3B").config,
             eight_bits = {{"quant_method", "gptq"}, {"bits", 8}};
  const auto with_rope = [](json scaling) {
    return changed(llama31(2, 64, 64, 8), {{"rope_scaling", scaling}});
  };
  json blind = qwen3_vl();
  blind.erase("text_config");
  const std::vector<std::tuple<json, const char*>> refused{
      {blind, "text_config"},
      {changed(minimax_m2(), {{"use_sliding_window", true}}), "use_sliding_window"},
      {changed(mixtral(), {{"quantization_config", eight_bits}}), "quantization_config"},
      {changed(deepseek3(), {{"quantization_config", {{"quant_method", "fp8"}, {"fmt", "e4m3"}}}}),
       "weight_block_size"},
      {changed(qwen, {{"mlp_only_layers", {0, 48}}}), "mlp_only_layers"},
      {changed(qwen, {{"decoder_sparse_step", 64}}), "decoder_sparse_step"},
      {changed(minimax_m2(), {{"attention_bias", true}}), "attention_bias"},
      {changed(qwen, {{"use_sliding_window", true}, {"sliding_window", 0}}), "sliding_window"},
      {changed(qwen, {{"layer_types", {"full_attention", "sliding_attention"}}}), "layer_types"},
      {changed(deepseek2(), {{"moe_layer_freq", 2}}), "moe_layer_freq"},
      {changed(deepseek2(), {{"topk_method", "noaux_tc"}}), "topk_method"},
      {changed(deepseek3(), {{"model_type", "deepseek_v4"}}), "model_type"},
      {changed(deepseek3(), {{"model_type", "deepseek_v32"}}), "index_n_heads"},
      {changed(deepseek32(), {{"model_type", "glm_moe_dsa"}, {"indexer_types", {"full", "shared"}}}),
       "indexer_types"},
      {changed(deepseek32(), {{"layer_types", {"full_attention"}}}), "layer_types"},
      {changed(deepseek3(), {{"n_group", nullptr}}), "n_group"},
      {with_rope({{"type", "longrope"}, {"factor", 4.0}}), "rope_type"},
      {with_rope({{"rope_type", "dynamic"}, {"factor", 4.0}}), "rope_type"}};
  for (const auto& [config, words] : refused) {
    try {
      config_of_hub(config);
      ADD_FAILURE() << "accepted, expected an error with: " << words;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace switchyard
