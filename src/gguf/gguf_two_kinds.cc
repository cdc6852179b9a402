// GGUF's settings of families whose layers are of two kinds, with a window and without.
#include <fmt/format.h>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/architectures.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr const char *kFull = "full_attention", *kWindowed = "sliding_attention";

// `layer_types`: of flags, one a layer.
void add_layer_types(const std::vector<bool>& windows, json& config) {
  config["layer_types"] = json::array();
  for (const bool window : windows) config["layer_types"].push_back(window ? kWindowed : kFull);
}

// A number a layer, where a kind's layers must agree; the kind's, or `absent` where no layer is of it.
std::int64_t number_of_kind(const GgufMetadata& metadata, const char* key, const json& config,
                            const char* kind, std::int64_t absent) {
  const json& words = config.at("layer_types");
  const std::vector<std::int64_t> numbers = metadata.integers(key, std::ssize(words));
  std::int64_t found = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != kind) continue;
    if (found != 0 && numbers[i] != found)
      metadata.wrong(key, fmt::format("one number for all layers {} a window",
                                      std::string_view(kind) == kFull ? "without" : "with"));
    found = numbers[i];
  }
  return found == 0 ? absent : found;
}

// rope_parameters of both kinds. Scaling, where there is some, is of the layers without a window.
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
      {kFull, of_full},
      {kWindowed,
       {{"rope_type", "default"}, {"rope_theta", theta}, {"partial_rotary_factor", share(windowed)}}}};
}

// Which layers have experts: those with a router.
void add_layers_with_experts(const GgufFile& file, json& config) {
  for (std::int64_t i = 0; i < config["num_hidden_layers"].get<std::int64_t>(); ++i)
    config["mlp_layer_types"].push_back(
        file.entries().contains(fmt::format("blk.{}.ffn_gate_inp.weight", i)) ? "sparse" : "dense");
}

double factor_of_weights(const GgufMetadata& metadata) {
  const double scale = metadata.number("expert_weights_scale", 1);
  return scale == 0 ? 1 : scale;  // 0 is as good as none
}

// Limits of gates, one a layer.
json limits(const GgufMetadata& metadata, const char* key, const json& config) {
  const auto layers = config.at("num_hidden_layers").get<std::int64_t>();
  return metadata.has(key) ? metadata.numbers(key, layers)
                           : std::vector<double>(static_cast<std::size_t>(layers), 0);
}

}  // namespace

void add_mimo2(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  config["model_type"] = "mimo_v2_flash";
  add_layer_types(metadata.flags("attention.sliding_window_pattern", layers), config);
  const std::int64_t full = number_of_kind(metadata, "attention.head_count_kv", config, kFull, 1);
  config["num_key_value_heads"] = full;
  config["swa_num_key_value_heads"] =
      number_of_kind(metadata, "attention.head_count_kv", config, kWindowed, 2 * full);
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  config["v_head_dim"] = metadata.integer("attention.value_length");
  config["attention_value_scale"] = metadata.number("attention.value_scale", 1);
  const std::int64_t rotated = metadata.integer("rope.dimension_count");
  add_rotations(metadata, rotated, metadata.integer("rope.dimension_count_swa", rotated), config);
  add_layers_with_experts(file, config);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["routed_scaling_factor"] = factor_of_weights(metadata);
  config["n_group"] = metadata.integer("expert_group_count", 1);
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
}

// A file says nothing of the rotated share: llama.cpp rotates half of a head where there is no window.
void add_step35(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  config["model_type"] = "step3p5";
  add_layer_types(metadata.flags("attention.sliding_window_pattern", layers), config);
  const std::int64_t heads = config["num_attention_heads"].get<std::int64_t>(),
                     full = number_of_kind(metadata, "attention.head_count", config, kFull, heads);
  config["num_attention_heads"] = full;
  config["num_sliding_attention_heads"] =
      number_of_kind(metadata, "attention.head_count", config, kWindowed, full);
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  const std::int64_t rotated =
      metadata.integer("rope.dimension_count", config["head_dim"].get<std::int64_t>());
  add_rotations(metadata, rotated / 2, rotated, config);
  add_layers_with_experts(file, config);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["share_expert_dim"] = metadata.integer("expert_shared_feed_forward_length");
  config["moe_router_scaling_factor"] = factor_of_weights(metadata);
  config["swiglu_limits"] = limits(metadata, "swiglu_clamp_exp", config);
  config["swiglu_limits_shared"] = limits(metadata, "swiglu_clamp_shexp", config);
  // Tensors tell which layers have experts.
  for (const char* key : {"leading_dense_block_count", "moe_every_n_layers"}) metadata.integer(key, 0);
}

// A file says nothing of which layers have a window: llama.cpp gives none to each fourth, from the first on.
void add_laguna(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr std::int64_t kInterval = 4;
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  config["model_type"] = "laguna";
  std::vector<bool> windows;
  for (std::int64_t i = 0; i < layers; ++i) windows.push_back(i % kInterval != 0);
  if (metadata.is_list("attention.sliding_window_pattern"))
    windows = metadata.flags("attention.sliding_window_pattern", layers);
  add_layer_types(windows, config);
  const std::vector<std::int64_t> heads = metadata.integers("attention.head_count", layers);
  config["num_attention_heads"] = heads.front();
  config["num_attention_heads_per_layer"] = heads;
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  const std::int64_t head = config["head_dim"].get<std::int64_t>(),
                     rotated = metadata.integer("rope.dimension_count", head);
  add_rotations(metadata, rotated, metadata.integer("rope.dimension_count_swa", rotated), config);
  // One row a head, or one a value.
  const std::int64_t gates = file.at("blk.0.attn_gate.weight").shape.front();
  config["gating"] = gates == heads.front() ? json(true) : json("per-element");
  add_layers_with_experts(file, config);
  config["num_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length");
  config["moe_routed_scaling_factor"] = factor_of_weights(metadata);
  metadata.integer("leading_dense_block_count", 0);  // tensors tell it
}

}  // namespace switchyard
