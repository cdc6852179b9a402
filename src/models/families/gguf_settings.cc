#include "models/families/gguf_settings.h"

#include <fmt/format.h>

#include <string>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {

using nlohmann::json;

bool has_tensor(const GgufFile& file, const std::string& name) {
  return file.entries().contains(name);
}

void add_rotated_share(const GgufMetadata& metadata, json& config) {
  const auto integer = [&](const char* key) { return config.at(key).get<std::int64_t>(); };
  const std::int64_t heads = integer("num_attention_heads"),
                     width = config.contains("head_dim") ? integer("head_dim")
                             : heads > 0                 ? integer("hidden_size") / heads
                                                         : 0,
                     rotated = metadata.integer("rope.dimension_count", width);
  if (width == 0 || rotated == 0 || rotated > width)
    metadata.wrong("rope.dimension_count", fmt::format("1 to the {} values of a head", width));
  config["rope_parameters"]["partial_rotary_factor"] =
      static_cast<double>(rotated) / static_cast<double>(width);
}

void add_experts_of_qwen(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr const char* kWidth = "expert_feed_forward_length";
  config["num_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] =
      metadata.has(kWidth) ? metadata.integer(kWidth) : file.at("blk.0.ffn_down_exps.weight").shape.back();
  if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
}

void add_experts_of_deepseek(const GgufMetadata& metadata, json& config) {
  const std::int64_t dense = metadata.integer("leading_dense_block_count", 0);
  if (dense >= config["num_hidden_layers"].get<std::int64_t>())
    metadata.wrong("leading_dense_block_count",
                   fmt::format("fewer than the {} layers", config["num_hidden_layers"].dump()));
  config["first_k_dense_replace"] = dense;
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["n_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["routed_scaling_factor"] = factor_of_weights(metadata);
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["n_group"] = metadata.integer("expert_group_count", 1);
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
}

void add_deepseek(const GgufFile&, const GgufMetadata& metadata, json& config) {
  const std::int64_t gating = metadata.integer("expert_gating_func", 0);
  if (gating != 0 && gating != kGgufSoftmax && gating != kGgufSigmoid)
    metadata.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)");
  const bool third = gating == kGgufSigmoid;
  config["num_key_value_heads"] = config["num_attention_heads"];
  const std::int64_t rope = metadata.integer("rope.dimension_count");
  // Files from before 2025 have the widths of one head in the keys without "_mla".
  config["qk_rope_head_dim"] = rope;
  config["qk_nope_head_dim"] =
      metadata.integer(metadata.has("attention.key_length_mla") ? "attention.key_length_mla"
                                                                : "attention.key_length") -
      rope;
  config["v_head_dim"] = metadata.integer(
      metadata.has("attention.value_length_mla") ? "attention.value_length_mla" : "attention.value_length");
  config["kv_lora_rank"] = metadata.integer("attention.kv_lora_rank");
  if (const std::int64_t rank = metadata.integer("attention.q_lora_rank", 0); rank > 0)
    config["q_lora_rank"] = rank;
  add_experts_of_deepseek(metadata, config);
  if (!third && config["norm_topk_prob"] == true)
    metadata.wrong("expert_weights_norm", "false, as expert_gating_func is 1 (softmax)");
  config["scoring_func"] = third ? "sigmoid" : "softmax";
  config["topk_method"] = third ? "noaux_tc" : config["n_group"] > 1 ? "group_limited_greedy" : "greedy";
  config.erase("head_dim");
}

void add_layers_with_experts(const GgufFile& file, json& config) {
  for (std::int64_t i = 0; i < config["num_hidden_layers"].get<std::int64_t>(); ++i)
    config["mlp_layer_types"].push_back(
        has_tensor(file, fmt::format("blk.{}.ffn_gate_inp.weight", i)) ? "sparse" : "dense");
}

double factor_of_weights(const GgufMetadata& metadata) {
  const double scale = metadata.number("expert_weights_scale", 1);
  return scale == 0 ? 1 : scale;
}

void add_layer_types(const std::vector<bool>& windows, json& config) {
  config["layer_types"] = json::array();
  for (const bool window : windows) config["layer_types"].push_back(window ? kWindowedLayer : kFullLayer);
}

std::int64_t number_of_kind(const GgufMetadata& metadata, const char* key, const json& config,
                            const char* kind, std::int64_t absent) {
  const json& words = config.at("layer_types");
  const std::vector<std::int64_t> numbers = metadata.integers(key, std::ssize(words));
  std::int64_t found = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != kind) continue;
    if (found != 0 && numbers[i] != found)
      metadata.wrong(key, fmt::format("one number for all layers {} a window",
                                      std::string_view(kind) == kFullLayer ? "without" : "with"));
    found = numbers[i];
  }
  return found == 0 ? absent : found;
}

void add_rotations(const GgufMetadata& metadata, std::int64_t full, std::int64_t windowed, json& config) {
  const auto head = config.at("head_dim").get<std::int64_t>();
  const auto share = [&](std::int64_t rotated) {
    if (rotated < 1 || rotated > head)
      metadata.wrong("rope.dimension_count", fmt::format("1 to the {} values of a head", head));
    return static_cast<double>(rotated) / static_cast<double>(head);
  };
  json of_full = config["rope_parameters"];
  const double theta = metadata.number("rope.freq_base_swa", of_full["rope_theta"].get<double>());
  of_full["partial_rotary_factor"] = share(full);
  config["rope_parameters"] = {
      {kFullLayer, of_full},
      {kWindowedLayer,
       {{"rope_type", "default"}, {"rope_theta", theta}, {"partial_rotary_factor", share(windowed)}}}};
}

}  // namespace switchyard
