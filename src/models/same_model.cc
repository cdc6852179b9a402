#include "models/same_model.h"

#include "config/declaration.h"
#include "core/error.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

using nlohmann::json;

Config in_float32(std::map<std::string, json> keys) {
  keys["dtype"] = keys["weight_dtype"] = "float32";
  keys["run_name"] = "weights";  // not the time: what is made of the same weights is the same
  return Config::from_map(keys, {});
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
  if (resolved.value("use_random_routing", json()) == true) take(*find_key("init_weights_seed"));
  // How rows travel and how an indexer learns is no part of the model.
  for (const char* key : {"indexer_loss_scaling_factor",
                          "indexer_sparse_training",
                          "expert_shard_attention_option",
                          "shard_exp_on_fsdp",
                          "use_ring_of_experts",
                          "num_moe_token_chunks",
                          "num_moe_emb_chunks",
                          "moe_dispatch_no_expert_sharding",
                          "sparse_matmul",
                          "ragged_buffer_factor",
                          "ragged_drop_policy",
                          "capacity_factor",
                          "routed_bias_update_rate",
                          "moe_dropless_fallback",
                          "eval_ragged_buffer_factor",
                          "log_required_ragged_buffer_factor",
                          "moe_log_max_load_ratio",
                          "moe_use_megatron_seq_aux_loss",
                          "moe_quantize_combine_bwd_method",
                          "log_moe_bias_norms"}) {
    keys.erase(key);
  }
  if (resolved.value("routed_score_func", json()) == "sigmoid" && resolved.contains("norm_topk_prob"))
    keys["norm_topk_prob"] = resolved["norm_topk_prob"];
  // The same of what a block has where nobody says (ConfigBuilder::derive_block).
  for (const char* key : {"use_qk_norm", "attention_output_bias"}) {
    if (resolved.contains(key)) keys[key] = resolved[key];
  }
  return keys;
}

Config config_of_stored(const json& resolved, const std::string& path) {
  return in_float32(model_keys_of_stored(resolved, path));
}

Config config_of_hub(const json& hub_config, std::int64_t predictions, const std::string& compat) {
  std::map<std::string, json> keys = config_from_hub(hub_config, predictions);
  keys["compat"] = compat;
  return in_float32(std::move(keys));
}

}  // namespace switchyard
