// Says what a decoder_block of the reference has beside what all other keys say.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// A block's row is in its family's file. Shared code asks for fields, never for names.
struct DecoderBlock {
  std::string_view name;

  // Layers.
  bool experts = false;              // it has MoE layers: num_experts is 2 or more
  bool interleaved_experts = false;  // they may be every interleave_moe_layer_step-th layer only
  // Layers but each inhomogeneous_layer_cycle_interval-th, or those of delta_layers, have a gated delta net.
  bool delta_nets = false;
  // Layers may go without rotation (nope_layer_interval, unrotated_layers), which then see all tokens while
  // others see chunks (chunk_attn_window_size), and whose queries may grow (temperature_tuning).
  bool unrotated_layers = false;
  // Unless windowed_layers says otherwise every other layer has the window, from the first on; there is one.
  bool alternating_windows = false;

  // Attention.
  bool latent_attention = false;      // attention_type=mla, and no other
  bool gated_attention = false;       // its output has a gate, and none of its products has a bias
  bool interleaved_rotation = false;  // neighbours are rotated, not halves
  bool unit_qk_norm = false;          // use_qk_norm is a norm after rotation, without weights
  bool scaled_scores = false;   // under compat=maxtext too scores are scaled apart from the query's weights
  bool norms_plus_one = false;  // norms multiply by 1 + weight
  bool post_mlp_norm = false;   // use_post_ffw_norm may ask for a norm of what the MLP or the experts give

  // Experts.
  // Attention gives latent tokens, the experts work on them, and a projection leads back to emb.
  bool latent_experts = false;
  // Without compat=maxtext routed_score_func=none is a softmax over all experts.
  bool softmax_over_all = false;
  bool shared_experts = true;         // it may have them
  bool gated_shared_experts = false;  // their output has a gate
  bool clamped_gates = false;  // gates are clamped (mlp_activations_limit), and sigmoid instead of silu
  bool logit_bias = false;     // routed_bias is a bias of the router's logits, not for selection alone
  // Experts are chosen by logits, and the logistic function of a chosen one multiplies what its expert takes.
  bool weights_on_inputs = false;
};

// Of that name (models/families/registry.cc). Error(usage) that lists all of them.
const DecoderBlock& decoder_block(const std::string& name);

// The names of the blocks that have it, for an error: "a, b or c".
std::string blocks_with(bool DecoderBlock::*feature);

}  // namespace switchyard
