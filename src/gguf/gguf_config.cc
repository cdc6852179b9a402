// A GGUF file's metadata as the config.json that transformers would have for its model.
#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "gguf/gguf_weights.h"
#include "gguf/metadata.h"

namespace switchyard {
namespace {

using nlohmann::json;

// By what linear scaling divides all frequencies; files from before 2023-10 name it otherwise.
double linear_factor(const GgufMetadata& metadata) {
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (!metadata.has(key)) continue;
    const double factor = metadata.number(key);
    if (factor == 0) continue;  // as if it were not there
    if (!(factor > 0)) metadata.wrong(key, "more than 0");
    return factor;
  }
  return 1;
}

json rope_of(const GgufMetadata& metadata) {
  json rope{{"rope_theta", metadata.number("rope.freq_base", 10000)}, {"rope_type", "default"}};
  // These multiply what is rotated, or set how YaRN goes from one scale to the other.
  for (const char* key :
       {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"})
    if (metadata.number(key, 1) != 1) metadata.wrong(key, "1; other values are not supported");
  // A factor without a type is linear.
  const std::string scaling =
      metadata.has("rope.scaling.type") ? metadata.text("rope.scaling.type") : "linear";
  if (scaling == "none" || scaling == "linear") return rope;
  if (scaling != "yarn") metadata.wrong("rope.scaling.type", "none, linear or yarn");
  rope["rope_type"] = "yarn";
  rope["factor"] = metadata.number("rope.scaling.factor");
  rope["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length");
  if (metadata.has("rope.scaling.yarn_log_multiplier")) {
    // A tenth of mscale_all_dim, which equals mscale in all models that have both.
    const double mscale = metadata.number("rope.scaling.yarn_log_multiplier") * 10;
    rope["mscale"] = rope["mscale_all_dim"] = mscale;
  }
  if (metadata.has("rope.scaling.yarn_beta_fast"))
    rope["beta_fast"] = metadata.number("rope.scaling.yarn_beta_fast");
  if (metadata.has("rope.scaling.yarn_beta_slow"))
    rope["beta_slow"] = metadata.number("rope.scaling.yarn_beta_slow");
  return rope;
}

// The factors of a model with pairs of its own: linear scaling, and those of rope_freqs.weight, one a pair
// of the dims that are rotated.
void add_divisors(const GgufFile& file, const GgufMetadata& metadata, std::int64_t rotated, json& rope) {
  constexpr const char* kFactors = "rope_freqs.weight";
  const bool linear = !metadata.has("rope.scaling.type") || metadata.text("rope.scaling.type") == "linear";
  const double all = linear ? linear_factor(metadata) : 1;
  if (!file.entries().contains(kFactors) && all == 1) return;
  std::vector<double> divisors(static_cast<std::size_t>(rotated / 2), all);
  if (file.entries().contains(kFactors)) {
    if (GgufMetadata(file, "general").text("architecture") != "llama")
      fail_usage("[gguf] {}: has {}, which only models of the architecture llama can have", file.path(),
                 kFactors);
    if (rope.at("rope_type") != "default")
      fail_usage("[gguf] {}: has {} beside rope.scaling.type={}, expected one of them", file.path(), kFactors,
                 metadata.text("rope.scaling.type"));
    const Tensor factors = file.read(kFactors);
    if (factors.shape() != Shape{rotated / 2})
      fail_usage("[gguf] {}: tensor {} is {}, expected a number for each of {} pairs", file.path(),
                 in_quotes(kFactors), to_string(factors.shape()), rotated / 2);
    for (std::size_t i = 0; i < divisors.size(); ++i) {
      const float factor = factors.data<float>()[i];
      if (!(factor > 0) || !std::isfinite(factor))
        fail_usage("[gguf] {}: tensor {} has {}, expected numbers above 0", file.path(), in_quotes(kFactors),
                   factor);
      divisors[i] *= static_cast<double>(factor);
    }
  }
  rope["frequency_divisors"] = divisors;
}

void add_deepseek(const GgufMetadata& metadata, json& config) {
  const std::int64_t gating = metadata.integer("expert_gating_func", 1);
  if (gating != 1 && gating != 2) metadata.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)");
  const bool third = gating == 2;
  config["model_type"] = third ? "deepseek_v3" : "deepseek_v2";
  const std::int64_t rope = metadata.integer("rope.dimension_count"),
                     groups = metadata.integer("expert_group_count", 1);
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
  config["first_k_dense_replace"] = metadata.integer("leading_dense_block_count", 0);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["n_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["routed_scaling_factor"] = metadata.number("expert_weights_scale", 1);
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["n_group"] = groups;
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
  config["scoring_func"] = third ? "sigmoid" : "softmax";
  config["topk_method"] = third ? "noaux_tc" : groups > 1 ? "group_limited_greedy" : "greedy";
  config.erase("head_dim");
}

// The kinds of layers, one a layer: a list of flags, or every so many-th layer has full attention.
json layer_types_of(const GgufMetadata& metadata, std::int64_t layers) {
  constexpr const char* kRecurrent = "attention.recurrent_layers";
  json kinds = json::array();
  const auto add = [&](bool recurrent) {
    kinds.push_back(recurrent ? "linear_attention" : "full_attention");
  };
  if (!metadata.has(kRecurrent)) {
    constexpr std::int64_t kUsualInterval = 4;
    const std::int64_t interval = metadata.integer("full_attention_interval", kUsualInterval);
    if (interval == 0) metadata.wrong("full_attention_interval", "at least 1");
    for (std::int64_t i = 0; i < layers; ++i) add((i + 1) % interval != 0);
    return kinds;
  }
  const json& flags = metadata.list(kRecurrent);
  if (std::ssize(flags) < layers)
    metadata.wrong(kRecurrent, fmt::format("a flag for each of {} layers", layers));
  for (std::int64_t i = 0; i < layers; ++i) {
    const json& flag = flags[static_cast<std::size_t>(i)];
    if (!flag.is_boolean() && flag != 0 && flag != 1) metadata.wrong(kRecurrent, "flags");
    add(flag.is_boolean() ? flag.get<bool>() : flag == 1);
  }
  return kinds;
}

// Qwen3-Next and Qwen3.5 with experts.
void add_delta_net(const GgufMetadata& metadata, std::int64_t experts, json& config) {
  const std::int64_t predictions = metadata.integer("nextn_predict_layers", 0),
                     blocks = metadata.integer("block_count");
  if (predictions >= blocks)
    metadata.wrong("nextn_predict_layers", fmt::format("fewer than the {} blocks", blocks));
  config["num_hidden_layers"] = blocks - predictions;
  config["layer_types"] = layer_types_of(metadata, blocks - predictions);
  const std::int64_t width = metadata.integer("attention.key_length"),
                     rotated = metadata.integer("rope.dimension_count", width),
                     value_heads = metadata.integer("ssm.time_step_rank"),
                     inner = metadata.integer("ssm.inner_size");
  if (metadata.integer("attention.value_length", width) != width)
    metadata.wrong("attention.value_length", fmt::format("attention.key_length, {}", width));
  if (width == 0 || rotated == 0 || rotated > width)
    metadata.wrong("rope.dimension_count", fmt::format("1 to the {} values of a head", width));
  config["rope_parameters"]["partial_rotary_factor"] =
      static_cast<double>(rotated) / static_cast<double>(width);
  if (value_heads == 0 || inner % value_heads != 0)
    metadata.wrong("ssm.inner_size", fmt::format("a multiple of the {} value heads", value_heads));
  config["linear_num_key_heads"] = metadata.integer("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = metadata.integer("ssm.state_size");
  config["linear_value_head_dim"] = inner / value_heads;
  config["linear_conv_kernel_dim"] = metadata.integer("ssm.conv_kernel");
  config["num_experts"] = experts;
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length");
  config["norm_topk_prob"] = true;  // of all models of these architectures
  if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
}

}  // namespace

json hub_config_of(const GgufFile& file) {
  const GgufMetadata general(file, "general");
  const std::string architecture = general.text("architecture");
  const GgufMetadata metadata(file, architecture);
  const std::int64_t experts = metadata.integer("expert_count", 0),
                     heads = metadata.integer("attention.head_count"),
                     width = metadata.integer("embedding_length");
  json config{{"hidden_size", width},
              {"num_attention_heads", heads},
              {"num_key_value_heads", metadata.integer("attention.head_count_kv", heads)},
              {"intermediate_size", metadata.integer("feed_forward_length", 0)},
              {"num_hidden_layers", metadata.integer("block_count")},
              {"rms_norm_eps", metadata.number("attention.layer_norm_rms_epsilon")},
              {"max_position_embeddings", metadata.integer("context_length")},
              {"vocab_size", file.at("token_embd.weight").shape[0]},
              {"tie_word_embeddings", !file.entries().contains("output.weight")},
              {"hidden_act", "silu"},
              {"rope_parameters", rope_of(metadata)}};
  if (metadata.has("attention.key_length")) config["head_dim"] = metadata.integer("attention.key_length");
  if (experts > 0) config["num_experts_per_tok"] = metadata.integer("expert_used_count");
  // Of a head of the ordinary kind all dims are rotated; the others have their own widths.
  const bool own_width =
      architecture == "deepseek2" || architecture == "qwen3next" || architecture == "qwen35moe";
  const std::int64_t head = config.contains("head_dim") ? config["head_dim"].get<std::int64_t>()
                            : heads > 0                 ? width / heads
                                                        : 0,
                     rotated = metadata.integer("rope.dimension_count", head);
  if (!own_width && rotated != head)
    metadata.wrong("rope.dimension_count", fmt::format("{}, the width of a head", head));
  add_divisors(file, metadata, rotated, config["rope_parameters"]);
  if (architecture == "llama") {
    config["model_type"] = experts > 0 ? "mixtral" : "llama";
    if (experts > 0) config["num_local_experts"] = experts;
  } else if (architecture == "qwen2" || architecture == "qwen3") {
    config["model_type"] = architecture;
  } else if (architecture == "qwen3moe") {
    config["model_type"] = "qwen3_moe";
    config["num_experts"] = experts;
    config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
    config["norm_topk_prob"] = true;  // of all models of this architecture
    if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
  } else if (architecture == "deepseek2") {
    config["num_key_value_heads"] = heads;
    add_deepseek(metadata, config);
  } else if (architecture == "gpt-oss") {
    config["model_type"] = "gpt_oss";
    config["attention_bias"] = true;
    config["num_local_experts"] = experts;
    config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
    config["sliding_window"] = metadata.integer("attention.sliding_window");
    config["rope_parameters"]["truncate"] = false;  // of all models of this architecture
  } else if (architecture == "qwen3next" || architecture == "qwen35moe") {
    config["model_type"] = architecture == "qwen3next" ? "qwen3_next" : "qwen3_5_moe_text";
    add_delta_net(metadata, experts, config);
  } else {
    general.wrong("architecture",
                  "llama, qwen2, qwen3, qwen3moe, qwen3next, qwen35moe, deepseek2 or gpt-oss");
  }
  return config;
}

}  // namespace switchyard
