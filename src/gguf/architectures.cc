#include "gguf/architectures.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr GgufExperts kExpertsOfMixtral{"block_sparse_moe.experts.", "w1.weight", "w3.weight", "w2.weight"};

constexpr GgufName kMixtralNames[] = {{"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"}};

// The experts' biases are [experts, outputs], as in models/families/gpt_oss.cc.
constexpr GgufName kGptOssNames[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
};

constexpr GgufName kGatedSharedNames[] = {
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
};

// GgufWeights::add_delta_net() knows the others.
constexpr GgufName kDeltaNetNames[] = {
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    kGatedSharedNames[0],
    kGatedSharedNames[1],
    kGatedSharedNames[2],
    kGatedSharedNames[3],
};

// Dense.
constexpr GgufName kQwen35Names[] = {{"post_attention_norm.weight", "post_attention_layernorm.weight"}};

constexpr GgufName kErnieNames[] = {{"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"}};

constexpr GgufName kHy3Names[] = {
    {"ffn_gate_inp.weight", "mlp.router.gate.weight"},
    {"exp_probs_b", "mlp.expert_bias"},
    {"exp_probs_b.bias", "mlp.expert_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight"},
};

constexpr GgufName kGlm4Names[] = {{"post_attention_norm.weight", "post_attention_layernorm.weight"}};

constexpr GgufName kMinimaxNames[] = {
    kMixtralNames[0],
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"},
};

constexpr GgufExperts kExpertsOfLlama4{.begin = "feed_forward.experts."};
constexpr GgufName kLlama4Names[] = {
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_gate_inp.weight", "feed_forward.router.weight"},
    {"ffn_gate_shexp.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "feed_forward.shared_expert.down_proj.weight"},
};

bool has_tensor(const GgufFile& file, const char* name) {
  return file.entries().contains(name);
}

void add_llama(const GgufFile&, const GgufMetadata& metadata, json& config) {
  const std::int64_t experts = metadata.integer("expert_count", 0);
  config["model_type"] = experts > 0 ? "mixtral" : "llama";
  if (experts > 0) config["num_local_experts"] = experts;
}

void add_qwen2(const GgufFile&, const GgufMetadata&, json& config) {
  config["model_type"] = "qwen2";
}

void add_qwen3(const GgufFile&, const GgufMetadata&, json& config) {
  config["model_type"] = "qwen3";
}

// The experts' width has a key of its own; files from before 2024 have it in their tensors alone.
void add_experts_of_qwen(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr const char* kWidth = "expert_feed_forward_length";
  config["num_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] =
      metadata.has(kWidth) ? metadata.integer(kWidth) : file.at("blk.0.ffn_down_exps.weight").shape.back();
  if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
}

void add_qwen2_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "qwen2_moe";
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["shared_expert_intermediate_size"] = file.at("blk.0.ffn_down_shexp.weight").shape.back();
  add_experts_of_qwen(file, metadata, config);
}

// Qwen3-VL's decoder is Qwen3's for a text: its sections of a rotation have the same position.
void add_qwen3_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "qwen3_moe";
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", true);
  add_experts_of_qwen(file, metadata, config);
}

// Router, first dense layers and shared experts as in DeepSeek-V3.
void add_experts_of_deepseek(const GgufMetadata& metadata, json& config) {
  const std::int64_t dense = metadata.integer("leading_dense_block_count", 0);
  if (dense >= config["num_hidden_layers"].get<std::int64_t>())
    metadata.wrong("leading_dense_block_count",
                   fmt::format("fewer than the {} layers", config["num_hidden_layers"].dump()));
  config["first_k_dense_replace"] = dense;
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["n_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  const double scale = metadata.number("expert_weights_scale", 1);
  config["routed_scaling_factor"] = scale == 0 ? 1 : scale;  // 0 is as good as none
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["n_group"] = metadata.integer("expert_group_count", 1);
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
}

void add_deepseek(const GgufFile&, const GgufMetadata& metadata, json& config) {
  const std::int64_t gating = metadata.integer("expert_gating_func", 0);
  if (gating != 0 && gating != kGgufSoftmax && gating != kGgufSigmoid)
    metadata.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)");
  const bool third = gating == kGgufSigmoid;
  config["model_type"] = third ? "deepseek_v3" : "deepseek_v2";
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

// DeepSeek-V3.2, and GLM-5 with layers that share a choice of keys.
void add_indexed(const GgufFile& file, const GgufMetadata& metadata, json& config, const char* type) {
  add_deepseek(file, metadata, config);
  config["model_type"] = type;
  config["index_n_heads"] = metadata.integer("attention.indexer.head_count");
  config["index_head_dim"] = metadata.integer("attention.indexer.key_length");
  config["index_topk"] = metadata.integer("attention.indexer.top_k");
}

void add_deepseek_v32(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  add_indexed(file, metadata, config, "deepseek_v32");
}

void add_glm_dsa(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr const char* kTypes = "attention.indexer.types";  // true: an indexer
  add_indexed(file, metadata, config, "glm_moe_dsa");
  if (!metadata.has(kTypes)) return;
  for (const bool full : metadata.flags(kTypes, config["num_hidden_layers"].get<std::int64_t>()))
    config["indexer_types"].push_back(full ? "full" : "shared");
}

void add_gpt_oss(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "gpt_oss";
  config["num_local_experts"] = metadata.integer("expert_count");
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  config["rope_parameters"]["truncate"] = false;  // of all models of this architecture
  // A flag for each layer with a window, or a period, of whose layers the last has none; 0: all have one.
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const std::int64_t layers = config["num_hidden_layers"].get<std::int64_t>(),
                     period = metadata.is_list(kPattern) ? 0 : metadata.integer(kPattern, 2);
  std::vector<bool> windows(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i)
    windows[static_cast<std::size_t>(i)] = period == 0 || i % period < period - 1;
  if (metadata.is_list(kPattern)) windows = metadata.flags(kPattern, layers);
  for (const bool window : windows)
    config["layer_types"].push_back(window ? "sliding_attention" : "full_attention");
}

void add_glm4_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "glm4_moe";
  config["use_qk_norm"] = has_tensor(file, "blk.0.attn_q_norm.weight");
  add_rotated_share(metadata, config);
  add_experts_of_deepseek(metadata, config);
}

void add_ernie(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "ernie4_5_moe";
  config["moe_num_experts"] = metadata.integer("expert_count");
  config["moe_k"] = metadata.integer("expert_used_count");
  config.erase("num_experts_per_tok");
  config["moe_num_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["moe_layer_start_index"] = metadata.integer("leading_dense_block_count", 0);
  config["moe_layer_interval"] = metadata.integer("interleave_moe_layer_step", 1);
}

// Files do not say how many layers come before the first with experts: their tensors do.
void add_hy_v3(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "hy_v3";
  for (std::int64_t i = 0; i < config["num_hidden_layers"].get<std::int64_t>(); ++i)
    config["mlp_layer_types"].push_back(
        has_tensor(file, fmt::format("blk.{}.ffn_gate_inp.weight", i).c_str()) ? "sparse" : "dense");
  const std::int64_t width = metadata.integer("expert_feed_forward_length"),
                     shared = metadata.integer("expert_shared_feed_forward_length", 0);
  if (width == 0 || shared % width != 0)
    metadata.wrong("expert_shared_feed_forward_length", fmt::format("a multiple of {}", width));
  config["num_experts"] = metadata.integer("expert_count");
  config["num_shared_experts"] = shared / width;
  config["moe_intermediate_size"] = width;
  const double scale = metadata.number("expert_weights_scale", 1);
  config["router_scaling_factor"] = scale == 0 ? 1 : scale;  // 0 is as good as none
}

void add_minimax(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "minimax_m2";
  config["num_local_experts"] = metadata.integer("expert_count");
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  add_rotated_share(metadata, config);
}

void add_olmoe(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["model_type"] = "olmoe";
  config["num_experts"] = metadata.integer("expert_count");
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  const double clamp = metadata.number("attention.clamp_kqv", 0);  // 0 is as good as none
  if (clamp < 0) metadata.wrong("attention.clamp_kqv", "0 (none) or more");
  if (clamp > 0) config["clip_qkv"] = clamp;
}

// A file does not state chunks, layers without rotation, the growth of queries, and whether queries and keys
// have a norm. The published models have these numbers in common, and llama.cpp has them in its code.
void add_llama4(const GgufFile&, const GgufMetadata& metadata, json& config) {
  constexpr std::int64_t kChunk = 8192, kExpertsWithoutNorm = 128, kInterval = 4;
  if (metadata.integer("attention.sliding_window_pattern", kInterval) != kInterval)
    metadata.wrong("attention.sliding_window_pattern", fmt::format("{}", kInterval));
  const std::int64_t experts = metadata.integer("expert_count"),
                     layers = config["num_hidden_layers"].get<std::int64_t>(),
                     window = metadata.integer("attention.sliding_window", kChunk);
  if (window != 0 && window != kChunk)
    metadata.wrong("attention.sliding_window", fmt::format("0 (none) or {}", kChunk));
  const bool chunks = window != 0;
  config["model_type"] = "llama4_text";
  config["num_local_experts"] = experts;
  config["intermediate_size_mlp"] = config["intermediate_size"];
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["interleave_moe_layer_step"] = metadata.integer("interleave_moe_layer_step");
  config["use_qk_norm"] = experts != kExpertsWithoutNorm;
  config["attn_temperature_tuning"] = chunks;
  if (chunks) config["attention_chunk_size"] = kChunk;
  json rotates = json::array();
  for (std::int64_t i = 0; i < layers; ++i) rotates.push_back(chunks && (i + 1) % kInterval == 0 ? 0 : 1);
  config["no_rope_layers"] = rotates;
}

constexpr GgufName kIndexerNames[] = {
    {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
    {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
    {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
    {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
};

constexpr GgufName kMimoNames[] = {{"attn_sinks.weight", "self_attn.attention_sink_bias"}};

constexpr GgufName kStep3Names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "moe.gate.weight"},
    {"exp_probs_b.bias", "moe.router_bias"},
    {"ffn_gate_shexp.weight", "share_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "share_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "share_expert.down_proj.weight"},
};

constexpr GgufName kLagunaNames[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias"},
    kGatedSharedNames[0],
    kGatedSharedNames[1],
    kGatedSharedNames[2],
};

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",  // Llama, Mistral, Mixtral
     .tensors = kMixtralNames,
     .experts = kExpertsOfMixtral,
     .divides_weights = true,
     .alternating_halves = true,
     .rope_factors = true,
     .add = add_llama},
    {.name = "llama4",
     .tensors = kLlama4Names,
     .experts = kExpertsOfLlama4,
     .gating = kGgufSigmoid,
     .rope_factors = true,
     .add = add_llama4},
    {.name = "qwen2", .add = add_qwen2},
    {.name = "qwen2moe", .tensors = kGatedSharedNames, .add = add_qwen2_moe},
    {.name = "qwen3", .add = add_qwen3},
    {.name = "qwen3moe", .add = add_qwen3_moe},
    {.name = "qwen3vlmoe", .add = add_qwen3_moe},
    {.name = "qwen3next",
     .tensors = kDeltaNetNames,
     .norms_plus_one = true,
     .rotates_part = true,
     .add = add_delta_net_config},
    {.name = "qwen35moe",
     .tensors = kDeltaNetNames,
     .norms_plus_one = true,
     .rotates_part = true,
     .add = add_delta_net_config},
    {.name = "qwen35",
     .tensors = kQwen35Names,
     .norms_plus_one = true,
     .rotates_part = true,
     .add = add_delta_net_config},
    {.name = "hy_v3",
     .tensors = kHy3Names,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .add = add_hy_v3},
    {.name = "mimo2",
     .tensors = kMimoNames,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_mimo2},
    {.name = "step35",
     .tensors = kStep3Names,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .norms_plus_one = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_step35},
    {.name = "laguna",
     .tensors = kLagunaNames,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_laguna},
    {.name = "ernie4_5-moe", .tensors = kErnieNames, .divides_weights = true, .add = add_ernie},
    {.name = "deepseek2", .rotates_part = true, .add = add_deepseek},
    {.name = "deepseek32", .tensors = kIndexerNames, .rotates_part = true, .add = add_deepseek_v32},
    {.name = "glm-dsa", .tensors = kIndexerNames, .rotates_part = true, .add = add_glm_dsa},
    {.name = "glm4moe",
     .tensors = kGlm4Names,
     .gating = kGgufSigmoid,
     .rotates_part = true,
     .add = add_glm4_moe},
    {.name = "minimax-m2",
     .tensors = kMinimaxNames,
     .experts = kExpertsOfMixtral,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .add = add_minimax},
    {.name = "olmoe", .add = add_olmoe},
    {.name = "gpt-oss",
     .tensors = kGptOssNames,
     .gating = kGgufSoftmaxOfChosen,
     .divides_weights = true,
     .add = add_gpt_oss},
};

}  // namespace

const GgufArchitecture& architecture_of(const GgufFile& file) {
  const GgufMetadata general(file, "general");
  const std::string name = general.text("architecture");
  const auto found = std::ranges::find(kArchitectures, std::string_view(name), &GgufArchitecture::name);
  if (found != std::end(kArchitectures)) return *found;
  std::string names;
  for (const GgufArchitecture& architecture : kArchitectures)
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  general.wrong("architecture", names);
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

}  // namespace switchyard
