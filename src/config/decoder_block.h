// DecoderBlock: the properties that MaxText's decoder_block implies beyond the other config keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Each block's DecoderBlock is in its family's file (models/families). Shared code asks for
// fields, never for names of blocks.
struct DecoderBlock {
  std::string_view name;
  std::string_view other_name = {};  // another word for it in the reference

  // Keys that the reference does not have for the block, and their values unless given.
  bool normed_queries = false;  // use_qk_norm=true
  bool no_output_bias = false;  // attention_output_bias=false

  // Layers.
  bool experts = false;              // the block has MoE layers: num_experts is 2 or more
  bool one_mlp_width = false;        // all layers are MoE layers, and base_mlp_dim is the experts' width, too
  bool interleaved_experts = false;  // only every interleave_moe_layer_step-th layer may be an MoE layer
  // Layers have a gated delta net, save each inhomogeneous_layer_cycle_interval-th, or those of delta_layers.
  bool delta_nets = false;
  // Layers may go without rotation (nope_layer_interval, unrotated_layers). They see all tokens while others
  // see chunks (chunk_attn_window_size), and their queries may be scaled (temperature_tuning).
  bool unrotated_layers = false;
  bool growing_queries = false;  // temperature_tuning scales the queries of all layers
  // A window is required. Unless windowed_layers is set, every other layer has it, starting with the first.
  bool alternating_windows = false;

  // Attention.
  bool latent_attention = false;      // attention is attention_type=mla, and no other type is accepted
  bool gated_attention = false;       // attention's output has a gate; its projections have no biases
  bool interleaved_rotation = false;  // rotation pairs neighbouring dims, not the two halves
  bool unit_qk_norm = false;          // use_qk_norm is a norm after rotation, without weights
  bool scaled_scores = false;   // scores are scaled apart from the query's weights, also under compat=maxtext
  bool norms_plus_one = false;  // norms multiply by 1 + weight
  bool post_mlp_norm = false;   // use_post_ffw_norm may add a norm to the output of the MLP or the experts

  // Experts.
  // Attention outputs latent tokens, the experts work on latent tokens, and a projection restores emb_dim.
  bool latent_experts = false;
  // Without compat=maxtext, routed_score_func=none means a softmax over all experts.
  bool softmax_over_all = false;
  bool shared_experts = true;         // shared experts are allowed
  bool gated_shared_experts = false;  // the shared experts' output has a gate
  bool groups_by_two_best = false;    // MoeConfig::groups_by_two_best
  bool clamped_gates = false;  // gates are clamped (mlp_activations_limit), with sigmoid instead of silu
  bool logit_bias = false;     // routed_bias is added to the router's logits, not for selection alone
  // Experts are chosen by logits; the sigmoid of a chosen logit multiplies the expert's input.
  bool weights_on_inputs = false;
};

// All blocks (models/families/registry.cc).
const std::vector<const DecoderBlock*>& decoder_blocks();

// The block with that name. An unknown name: Error(usage) that lists all.
const DecoderBlock& decoder_block(const std::string& name);

// The names of the blocks that have the feature, for an error: "a, b or c".
std::string blocks_with(bool DecoderBlock::*feature);

}  // namespace switchyard
