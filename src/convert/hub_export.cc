#include "convert/hub_export.h"

#include <cmath>
#include <string>

#include "config/value.h"
#include "core/error.h"
#include "models/model_config.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using Hub = nlohmann::ordered_json;

struct Family {
  const char* type;          // model_type
  const char* architecture;  // class of transformers
};

// Two DeepSeek generations differ in how the router scores.
Family family_of(const Config& config, const ModelConfig& model) {
  switch (model.block) {
    case DecoderBlock::llama2:
      return {"llama", "LlamaForCausalLM"};
    case DecoderBlock::mistral:
      return {"mistral", "MistralForCausalLM"};
    case DecoderBlock::mixtral:
      return {"mixtral", "MixtralForCausalLM"};
    case DecoderBlock::qwen3:
      return {"qwen3", "Qwen3ForCausalLM"};
    case DecoderBlock::qwen3_moe:
      return {"qwen3_moe", "Qwen3MoeForCausalLM"};
    case DecoderBlock::deepseek:
      if (model.moe.score == RouterScore::softmax) return {"deepseek_v2", "DeepseekV2ForCausalLM"};
      return {"deepseek_v3", "DeepseekV3ForCausalLM"};
    case DecoderBlock::qwen3_custom_moe:
      break;
  }
  fail_usage("[convert] decoder_block={}: no Hugging Face model has this layer",
             config.get_string("decoder_block"));
}

// A value as json: whole numbers as integers, as published files have them.
Hub number(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

Hub rope_scaling(const Config& config, const ModelConfig& model) {
  const RopeConfig& rope = model.rope;
  if (rope.type == "llama3.1") {
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_frequency_factor},
            {"high_freq_factor", rope.high_frequency_factor},
            {"original_max_position_embeddings", rope.original_positions}};
  }
  if (rope.type != "yarn") return nullptr;
  Hub yarn = {{"rope_type", "yarn"},
              {"factor", rope.factor},
              {"beta_fast", number(rope.beta_fast)},
              {"beta_slow", number(rope.beta_slow)},
              {"original_max_position_embeddings", rope.original_positions}};
  if (!rope.truncate) yarn["truncate"] = false;
  // Both present and equal leave the rotated vectors alone; of MLA they also scale the scores.
  const double mscale = model.mla ? config.get_float("mscale") : 1.0;
  if (mscale == 0) fail_usage("[convert] mscale=0: no Hugging Face form; its files state one above 0");
  if (!rope.attention_scaling) yarn["mscale"] = yarn["mscale_all_dim"] = mscale;
  return yarn;
}

void add_grouped_attention(const ModelConfig& model, Hub& hub) {
  hub["num_key_value_heads"] = model.kv_heads;
  hub["head_dim"] = model.head_dim;
}

void add_latent_attention(const ModelConfig& model, Hub& hub) {
  hub["num_key_value_heads"] = model.heads;
  hub["q_lora_rank"] = model.q_lora > 0 ? Hub(model.q_lora) : Hub(nullptr);
  hub["kv_lora_rank"] = model.kv_lora;
  hub["qk_nope_head_dim"] = model.nope;
  hub["qk_rope_head_dim"] = model.rope_dim;
  hub["v_head_dim"] = model.v_dim;
}

void add_deepseek_experts(const Config& config, const ModelConfig& model, bool second, Hub& hub) {
  const MoeConfig& moe = model.moe;
  hub["first_k_dense_replace"] = model.dense_layers;
  hub["moe_layer_freq"] = 1;
  hub["n_routed_experts"] = moe.experts;
  hub["n_shared_experts"] = model.shared_experts;
  hub["num_experts_per_tok"] = moe.slots;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = moe.normalise && !second;
  hub["routed_scaling_factor"] = config.get_float("routed_scaling_factor");
  hub["scoring_func"] = second ? "softmax" : "sigmoid";
  const bool grouped = moe.groups > 1;
  hub["topk_method"] = !second ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy";
  hub["n_group"] = grouped ? moe.groups : 1;
  hub["topk_group"] = grouped ? moe.kept_groups : 1;
  if (!second) hub["rope_interleave"] = model.rope.interleaved;
}

void add_experts(const ModelConfig& model, const std::string& type, Hub& hub) {
  hub["num_experts_per_tok"] = model.moe.slots;
  if (type == "mixtral") {
    hub["num_local_experts"] = model.moe.experts;
    return;
  }
  hub["num_experts"] = model.moe.experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = model.moe.normalise;
  hub["decoder_sparse_step"] = 1;
  hub["mlp_only_layers"] = Hub::array();
}

// MLA scales its scores here when the context is stretched beyond the original, in transformers with YaRN.
void check_latent_scale(const Config& config, const ModelConfig& model) {
  const std::int64_t most = config.get_int("max_position_embeddings");
  const bool ours = most > model.rope.original_positions && model.rope.factor > 1;
  const bool theirs = model.rope.type == "yarn" && model.rope.factor > 1;
  if (!model.mla || ours == theirs) return;
  fail_usage(
      "[convert] max_position_embeddings={}, original_max_position_embeddings={}: no Hugging Face form with "
      "rope_type={}; MLA's scores are {}scaled here",
      most, model.rope.original_positions, model.rope.type, ours ? "" : "not ");
}

// Reads the file back as anyone else would: what it cannot say shows as a difference.
void check_same_model(const Config& config, const ModelConfig& model, const Hub& hub) {
  const std::string type = hub["model_type"].get<std::string>();
  const std::string key = differing_key(model, model_config(config_of_hub(nlohmann::json(hub))));
  if (key.empty()) return;
  fail_usage("[convert] {}={}: no Hugging Face form; a {} model cannot state it", key,
             value_text(config.resolved()[key]), type);
}

}  // namespace

nlohmann::ordered_json config_to_hub(const Config& config, const std::string& dtype) {
  const ModelConfig model = model_config(config);
  check_latent_scale(config, model);
  const auto [type, architecture] = family_of(config, model);
  Hub hub = {{"architectures", {architecture}},
             {"model_type", type},
             {"torch_dtype", dtype},
             {"hidden_act", "silu"},
             {"hidden_size", model.emb},
             {"intermediate_size", model.moe.experts > 0 && !model.mla ? model.moe_mlp : model.mlp},
             {"num_hidden_layers", model.layers},
             {"num_attention_heads", model.heads},
             {"vocab_size", model.vocab},
             {"max_position_embeddings", config.get_int("max_position_embeddings")},
             {"rms_norm_eps", config.get_float("normalization_layer_epsilon")},
             {"rope_theta", number(model.rope.theta)},
             {"rope_scaling", rope_scaling(config, model)},
             {"tie_word_embeddings", model.tied},
             {"attention_bias", false},
             {"attention_dropout", 0.0},
             {"initializer_range", 0.02},
             {"use_cache", true}};
  if (model.mla)
    add_latent_attention(model, hub);
  else
    add_grouped_attention(model, hub);
  if (model.block == DecoderBlock::deepseek)
    add_deepseek_experts(config, model, type == std::string("deepseek_v2"), hub);
  else if (model.moe.experts > 0)
    add_experts(model, type, hub);
  if (model.block == DecoderBlock::mistral || model.block == DecoderBlock::mixtral)
    hub["sliding_window"] = nullptr;
  if (model.block == DecoderBlock::qwen3 || model.block == DecoderBlock::qwen3_moe)
    hub["use_sliding_window"] = false;
  if (model.block == DecoderBlock::llama2) hub["mlp_bias"] = false;
  check_same_model(config, model, hub);
  return hub;
}

}  // namespace switchyard
