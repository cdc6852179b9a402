// What the reference's value of `decoder_block` says beside all other keys.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

struct DecoderBlock {
  std::string_view name;
  bool experts = false;           // it has MoE layers: num_experts is 2 or more
  bool latent_attention = false;  // attention_type=mla, and no other
  // Attention gives latent tokens, the experts work on them, and a projection leads back to emb.
  bool latent_experts = false;
  // Under compat=maxtext too scores are scaled apart from the query's weights.
  bool scaled_scores = false;
  // Without compat=maxtext routed_score_func=none is a softmax over all experts.
  bool softmax_over_all = false;
  // gpt-oss: routed_bias is a bias of the router's logits, the experts' gates are clamped
  // (mlp_activations_limit), and unless windowed_layers says otherwise every other layer has the window, from
  // the first on.
  bool as_gpt_oss = false;
  // Llama 4: neighbours are rotated; use_qk_norm is a norm after rotation, without weights; layers may go
  // without rotation (nope_layer_interval); experts are chosen by logits, and the logistic function of a
  // chosen one multiplies what its expert takes.
  bool as_llama4 = false;
  // Qwen3-Next: norms multiply by 1 + weight, attention's output and the shared expert have gates, and layers
  // but each inhomogeneous_layer_cycle_interval-th have a gated delta net in place of attention.
  bool as_qwen3_next = false;
  bool gated_shared_experts = false;  // the shared expert has a gate (Qwen2-MoE, Qwen3-Next)
  // Envy: every interleave_moe_layer_step-th layer has experts, and with use_post_ffw_norm what the MLP or
  // the experts give is normed before it is added.
  bool as_envy = false;
};

// Of that name (models/families/registry.cc). Error(usage) that lists all of them.
const DecoderBlock& decoder_block(const std::string& name);

}  // namespace switchyard
