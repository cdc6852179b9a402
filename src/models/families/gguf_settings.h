// Settings that several families' GGUF files state alike, read as config.json says them.
#pragma once

#include "gguf/architectures.h"

namespace switchyard {

// Names of tensors that several families share.
inline constexpr GgufName kGatedSharedNames[] = {
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
};
inline constexpr GgufName kSecondNormName{"post_attention_norm.weight", "post_attention_layernorm.weight"};
inline constexpr GgufExperts kExpertsOfMixtral{"block_sparse_moe.experts.", "w1.weight", "w3.weight",
                                               "w2.weight"};

bool has_tensor(const GgufFile& file, const std::string& name);

// Writes `rope.dimension_count`, relative to a head's width, as transformers' partial_rotary_factor.
void add_rotated_share(const GgufMetadata& metadata, nlohmann::json& config);
// The experts' width has a key of its own; files from before 2024 have it in their tensors alone.
void add_experts_of_qwen(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config);
// Router, first dense layers and shared experts as in DeepSeek-V3.
void add_experts_of_deepseek(const GgufMetadata& metadata, nlohmann::json& config);
// Latent attention, and the rest of DeepSeek-V2 and V3.
void add_deepseek(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config);
// Which layers have experts, `mlp_layer_types`: those with a router.
void add_layers_with_experts(const GgufFile& file, nlohmann::json& config);
// `expert_weights_scale`; 0 is as good as none.
double factor_of_weights(const GgufMetadata& metadata);

// The words of `layer_types` in families whose layers are of two kinds, with a window and without.
inline constexpr const char *kFullLayer = "full_attention", *kWindowedLayer = "sliding_attention";
// `layer_types`: of flags, one a layer.
void add_layer_types(const std::vector<bool>& windows, nlohmann::json& config);
// A number a layer, where a kind's layers must agree; the kind's, or `absent` where no layer is of it.
std::int64_t number_of_kind(const GgufMetadata& metadata, const char* key, const nlohmann::json& config,
                            const char* kind, std::int64_t absent);
// rope_parameters of both kinds, of which so many values of a head rotate. Scaling, where there is some, is
// of the layers without a window.
void add_rotations(const GgufMetadata& metadata, std::int64_t full, std::int64_t windowed,
                   nlohmann::json& config);

}  // namespace switchyard
