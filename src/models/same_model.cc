#include "models/same_model.h"

#include <functional>
#include <utility>
#include <vector>

#include "checkpoint/hub.h"
#include "config/declaration.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

Config in_float32(std::map<std::string, json> keys) {
  keys["dtype"] = keys["weight_dtype"] = "float32";
  keys["run_name"] = "weights";  // not the time: what is made of the same weights is the same
  return Config::from_map(keys, {});
}

// One property of a model, by the key that sets it. Properties that do not apply are null.
using Property = std::pair<const char*, std::function<json(const ModelConfig&)>>;

json yarn(const ModelConfig& m, double value) {
  return m.rope.type == "yarn" ? json(value) : json();
}
json llama3(const ModelConfig& m, double value) {
  return m.rope.type == "llama3.1" ? json(value) : json();
}
json stretched(const ModelConfig& m, double value) {
  return m.rope.type == "default" ? json() : json(value);
}
json latent(const ModelConfig& m, std::int64_t value) {
  return m.mla ? json(value) : json();
}
json grouped(const ModelConfig& m, std::int64_t value) {
  return m.mla ? json() : json(value);
}
json sparse(const ModelConfig& m, double value) {
  return m.moe.experts > 0 ? json(value) : json();
}

const std::vector<Property>& shape_properties() {
  static const std::vector<Property> properties{
      {"base_num_decoder_layers", [](const ModelConfig& m) { return m.layers; }},
      {"base_emb_dim", [](const ModelConfig& m) { return m.emb; }},
      {"vocab_size", [](const ModelConfig& m) { return m.vocab; }},
      {"attention_type", [](const ModelConfig& m) { return m.mla; }},
      {"base_num_query_heads", [](const ModelConfig& m) { return m.heads; }},
      {"base_num_kv_heads", [](const ModelConfig& m) { return grouped(m, m.kv_heads); }},
      {"head_dim", [](const ModelConfig& m) { return grouped(m, m.head_dim); }},
      {"use_qk_norm", [](const ModelConfig& m) { return m.qk_norm; }},
      {"q_lora_rank", [](const ModelConfig& m) { return latent(m, m.q_lora); }},
      {"kv_lora_rank", [](const ModelConfig& m) { return latent(m, m.kv_lora); }},
      {"qk_nope_head_dim", [](const ModelConfig& m) { return latent(m, m.nope); }},
      {"qk_rope_head_dim", [](const ModelConfig& m) { return latent(m, m.rope_dim); }},
      {"v_head_dim", [](const ModelConfig& m) { return latent(m, m.v_dim); }},
      {"num_experts", [](const ModelConfig& m) { return m.moe.experts; }},
      {"first_num_dense_layers",
       [](const ModelConfig& m) { return sparse(m, static_cast<double>(m.dense_layers)); }},
      {"base_mlp_dim", [](const ModelConfig& m) { return m.moe_layers() < m.layers ? json(m.mlp) : json(); }},
      {"base_moe_mlp_dim", [](const ModelConfig& m) { return sparse(m, static_cast<double>(m.moe_mlp)); }},
      {"moe_expert_input_dim", [](const ModelConfig& m) { return m.moe_emb; }},
      {"shared_experts",
       [](const ModelConfig& m) { return sparse(m, static_cast<double>(m.shared_experts)); }},
      {"logits_via_embedding", [](const ModelConfig& m) { return m.tied; }},
  };
  return properties;
}

const std::vector<Property>& function_properties() {
  static const std::vector<Property> properties{
      {"compat", [](const ModelConfig& m) { return m.compat; }},
      {"normalization_layer_epsilon", [](const ModelConfig& m) { return m.norm_epsilon; }},
      {"normalize_embedding_logits", [](const ModelConfig& m) { return m.normalize_tied_logits; }},
      {"final_logits_soft_cap", [](const ModelConfig& m) { return m.logit_soft_cap; }},
      {"rope_type", [](const ModelConfig& m) { return m.rope.type; }},
      {"rope_max_timescale", [](const ModelConfig& m) { return m.rope.theta; }},
      {"rope_factor", [](const ModelConfig& m) { return stretched(m, m.rope.factor); }},
      {"original_max_position_embeddings",
       [](const ModelConfig& m) { return stretched(m, static_cast<double>(m.rope.original_positions)); }},
      {"rope_low_freq_factor", [](const ModelConfig& m) { return llama3(m, m.rope.low_frequency_factor); }},
      {"rope_high_freq_factor", [](const ModelConfig& m) { return llama3(m, m.rope.high_frequency_factor); }},
      {"beta_fast", [](const ModelConfig& m) { return yarn(m, m.rope.beta_fast); }},
      {"beta_slow", [](const ModelConfig& m) { return yarn(m, m.rope.beta_slow); }},
      {"rope_truncate", [](const ModelConfig& m) { return yarn(m, m.rope.truncate ? 1 : 0); }},
      {"rope_attention_scaling",
       [](const ModelConfig& m) { return yarn(m, m.rope.attention_scaling ? 1 : 0); }},
      {"rope_interleave", [](const ModelConfig& m) { return m.rope.interleaved; }},
      {"max_position_embeddings",
       [](const ModelConfig& m) { return latent(m, m.rope.beyond_original ? 1 : 0); }},
      {"mscale", [](const ModelConfig& m) { return m.attention_scale; }},
      {"num_experts_per_tok",
       [](const ModelConfig& m) { return sparse(m, static_cast<double>(m.moe.slots)); }},
      {"routed_score_func",
       [](const ModelConfig& m) {
         return sparse(m, m.moe.softmax_over_selected ? -1 : static_cast<int>(m.moe.score));
       }},
      {"routed_bias", [](const ModelConfig& m) { return m.moe.bias; }},
      {"norm_topk_prob", [](const ModelConfig& m) { return m.moe.normalise; }},
      {"routed_scaling_factor", [](const ModelConfig& m) { return sparse(m, m.moe.scaling); }},
      {"n_routing_groups", [](const ModelConfig& m) { return m.moe.groups > 1 ? m.moe.groups : 0; }},
      {"topk_routing_group", [](const ModelConfig& m) { return m.moe.groups > 1 ? m.moe.kept_groups : 0; }},
      {"use_random_routing", [](const ModelConfig& m) { return m.moe.random_routing; }},
  };
  return properties;
}

}  // namespace

std::map<std::string, json> model_keys_of_stored(const json& resolved, const std::string& path) {
  if (!resolved.is_object()) fail_usage("[config] {}: expected the keys of a run as an object", path);
  std::map<std::string, json> keys;
  const auto take = [&](const KeyDeclaration& key) {
    if (key.status != KeyStatus::active || !resolved.contains(key.name)) return;
    // A key at its default is not one the user gave, which is what some checks ask.
    if (resolved[key.name] != key.default_value) keys[key.name] = resolved[key.name];
  };
  for (const auto& table : {model_keys(), attention_keys(), moe_keys()}) {
    for (const KeyDeclaration& key : table) take(key);
  }
  take(*find_key("compat"));
  // How rows travel is no part of the model.
  for (const char* key :
       {"expert_shard_attention_option", "shard_exp_on_fsdp", "use_ring_of_experts", "num_moe_token_chunks",
        "num_moe_emb_chunks", "moe_dispatch_no_expert_sharding", "sparse_matmul", "ragged_buffer_factor",
        "ragged_drop_policy", "capacity_factor", "routed_bias_update_rate"}) {
    keys.erase(key);
  }
  if (resolved.value("routed_score_func", json()) == "sigmoid" && resolved.contains("norm_topk_prob"))
    keys["norm_topk_prob"] = resolved["norm_topk_prob"];
  return keys;
}

Config config_of_stored(const json& resolved, const std::string& path) {
  return in_float32(model_keys_of_stored(resolved, path));
}

Config config_of_hub(const json& hub_config) {
  return in_float32(config_from_hub(hub_config));
}

std::string differing_key(const ModelConfig& a, const ModelConfig& b) {
  for (const auto* properties : {&shape_properties(), &function_properties()}) {
    for (const auto& [key, value] : *properties) {
      if (value(a) != value(b)) return key;
    }
  }
  return "";
}

}  // namespace switchyard
