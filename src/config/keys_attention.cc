// Declares keys of attention: kinds, latent projections (MLA), norms and precision.
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> attention_keys() {
  return {
      choice_key("attention", "autoselected",
                 one_of({"autoselected", "dot_product", "flash", "cudnn_flash_te", "cudnn_flash_jax"},
                        {"paged", "vllm_rpa"}),
                 "which kernel the reference uses; all of them mean our one attention"),
      choice_key(
          "attention_type", "global",
          one_of({"global", "mla"}, {"local_sliding", "chunk", "full", "compressed", "block_diffusion"}),
          "causal attention over the sequence: grouped heads, or multi-head latent attention"),
      integer_key("q_lora_rank", 0, at_least(0),
                  "MLA: width of the query latent; 0: queries straight from x"),
      integer_key("kv_lora_rank", 512, at_least(0), "MLA: width of the key-value latent"),
      integer_key("qk_nope_head_dim", 128, at_least(0), "MLA: width of a head's part without positions"),
      integer_key("qk_rope_head_dim", 64, at_least(0), "MLA: width of a head's rotated part"),
      integer_key("v_head_dim", 128, at_least(0), "MLA: width of a head's values"),
      boolean_key("use_qk_norm", false,
                  "RMSNorm over each head of q and k (qwen3; llama4: after rotation, without weights); "
                  "qwen3_next and qwen3_5_moe: true unless given"),
      integer_key("attention_output_dim", -1, at_least_or(1, -1),
                  "width attention gives (qwen3_custom_moe); -1: base_emb_dim"),
      planned(boolean_key("qk_norm_with_scale", true, "the q and k norms have weights")),
      planned(boolean_key("v_norm_with_scale", true, "the value norm has weights")),
      boolean_key("attention_bias", false,
                  "biases of attention's products: query, key, value (MLA: those to latents) and output"),
      boolean_key(
          "attention_output_bias", true,
          "with attention_bias: whether the output has one too; qwen2, qwen2_moe: false unless given"),
      float_key("clip_qkv", 0.0, at_least(0),
                "bound of queries, keys and values: clamped to it and its negative after the norms of q and "
                "k, before rotation; 0: none"),
      choice_key("qk_norm_over", "head", one_of({"head", "width"}),
                 "with use_qk_norm: each head's norm is its own, or one is over all heads together"),
      float_key("latent_norm_epsilon", 0, at_least(0),
                "MLA: normalization_layer_epsilon of the latents' norms; 0: as of all others"),
      boolean_key("attention_sink", false, "a learned sink in each head's softmax (gpt_oss)"),
      planned(boolean_key("share_kv_projections", false, "keys and values share a projection")),
      integer_key("sliding_window_size", 0, at_least(0), "tokens that a windowed layer sees; 0: no windows"),
      integer_list_key(
          "windowed_layers", {},
          "numbers of the layers with that window; empty: all (gpt_oss: every other, from 0 on)"),
      integer_key(
          "chunk_attn_window_size", 0, at_least(0),
          "llama4: places of a chunk, of which a token of a rotated layer sees its own; 0: no chunks"),
      integer_list_key("delta_layers", {},
                       "qwen3_next: numbers of the layers with a gated delta net; empty: all but each "
                       "inhomogeneous_layer_cycle_interval-th"),
      integer_key("gdn_num_key_heads", 16, at_least(1), "gated delta net: heads of queries and keys"),
      integer_key("gdn_num_value_heads", 32, at_least(1),
                  "gated delta net: heads of values, a multiple of those of keys"),
      integer_key("gdn_key_head_dim", 128, at_least(1), "gated delta net: width of a query and a key"),
      integer_key("gdn_value_head_dim", 128, at_least(1), "gated delta net: width of a value"),
      integer_key("gdn_conv_kernel_dim", 4, between(1, 8), "gated delta net: taps of its convolution"),
      integer_key("gdn_chunk_size", 64, between(1, 1024),
                  "gated delta net: tokens that products take at once"),
      boolean_key("use_qk_norm_in_gdn", true, "gated delta net: queries and keys are unit vectors"),
      planned(float_key("attn_logits_soft_cap", 0.0, at_least(0), "soft cap of the scores")),
      planned(integer_key("global_head_dim", 0, at_least(0), "head width of global layers")),
      planned(integer_key("global_num_kv_heads", 0, at_least(0), "key heads of global layers")),
      boolean_key("temperature_tuning", false,
                  "queries (llama4: of layers without rotation) grow with the position p, times 1 + "
                  "temperature_tuning_scale * ln(1 + floor((p + temperature_tuning_offset) / "
                  "temperature_tuning_floor_scale))"),
      float_key("temperature_tuning_scale", 0.1, more_than(0), "with temperature_tuning: how fast they grow"),
      integer_key("temperature_tuning_floor_scale", 8192, at_least(1),
                  "with temperature_tuning: positions of a step of that growth"),
      integer_key("temperature_tuning_offset", 1, between(0, 1),
                  "with temperature_tuning: what is added to a position (0 for mistral4)"),
      integer_key("value_head_dim", 0, at_least(0),
                  "width of a head's values; 0: head_dim (MLA states v_head_dim)"),
      float_key("attention_value_scale", 1.0, more_than(0), "factor of the values"),
      choice_key("attention_gate", "block", one_of({"block", "none", "value", "head"}),
                 "what multiplies attention's output: a number for each value or for each head, a function "
                 "of a projection of x; block: as decoder_block says"),
      choice_key("attention_gate_curve", "sigmoid", one_of({"sigmoid", "softplus"}),
                 "with attention_gate: the function"),
      structure_key("attention_kinds", nlohmann::json::array(),
                    "kinds of attention by name, each with the keys that differ from the model's, as "
                    "{window: {sliding_window_size: 128, attention_sink: true}, full: {}}"),
      text_list_key("layer_kinds", {}, "the kind of each layer, a name of attention_kinds"),
      with_role(KeyRole::training,
                boolean_key("use_qk_clip", false,
                            "MLA: after each update, weights of queries and keys shrink where a head's "
                            "largest score of the step was above qk_clip_threshold")),
      with_role(KeyRole::training, float_key("qk_clip_threshold", 100.0, more_than(0),
                                             "with use_qk_clip: the largest score that is left")),
      planned(boolean_key("moba", false, "mixture of block attention")),
      inert(integer_key("moba_chunk_size", 1024, at_least(1), "only with moba")),
      inert(integer_key("moba_topk", 8, at_least(1), "only with moba")),
      integer_list_key("shared_choice_layers", {},
                       "with use_indexer: numbers of the layers without an indexer, which attend to the keys "
                       "that the last layer before with one chose"),
      boolean_key("use_indexer", false,
                  "MLA: sparse attention, of the keys that an indexer chooses (DeepSeek-V3.2)"),
      integer_key("indexer_head_dim", 128, at_least(0), "with use_indexer: width of its heads"),
      integer_key("indexer_n_heads", 64, at_least(0), "with use_indexer: its heads"),
      integer_key("indexer_topk", 2048, at_least(0), "with use_indexer: keys that a query attends to"),
      boolean_key("indexer_rope_interleave", false,
                  "with use_indexer: its rotations turn neighbours (GLM-5), not halves"),
      boolean_key("indexer_use_approx_top_k", false, "only false: keys are chosen exactly"),
      inert(float_key("indexer_approx_top_k_recall", 0.95, between(0, 1), "only with approximate choices")),
      boolean_key("indexer_mask_exact_topk", true, "only true: of equal scores the lower keys are chosen"),
      with_role(
          KeyRole::training,
          boolean_key("indexer_sparse_training", false,
                      "with indexer_loss_scaling_factor: the indexer's loss is over the chosen keys, beside "
                      "the model's; false: over all keys, and the model's is left out (dense warm-up)")),
      with_role(KeyRole::training,
                float_key("indexer_loss_scaling_factor", 0.0, at_least(0),
                          "factor of the loss that trains the indexer; 0: it is not trained")),
      planned(integer_key("o_lora_rank", 0, at_least(0), "latent output projection")),
      planned(integer_key("o_groups", 0, at_least(0), "groups of the output projection")),
      planned(integer_list_key("compress_ratios", {}, "compressed attention, by layer")),
      inert(integer_key("compressed_rope_max_timescale", 160000, at_least(1), "only with compress_ratios")),
      planned(boolean_key("use_ragged_attention", false, "attention over ragged caches")),
      inert(integer_key("mla_qk_head_chunk_size", 0, at_least(0),
                        "heads at a time in the reference's MLA; no effect on the result")),
      inert(boolean_key("use_sliced_mla_proj", false, "another order of the same products")),
      inert(boolean_key("mla_naive_kvcache", true, "layout of the cache in decoding")),
      inert(boolean_key("use_mla_absorbed_mqa", false,
                        "our cache always holds MLA's latent; the same products in another order")),
      inert(integer_key("csa_qk_head_chunk_size", 0, at_least(0), "only with compress_ratios")),
      inert(boolean_key("float32_qk_product", false, "our scores are always summed in float32")),
      inert(boolean_key("float32_logits", false, "our softmax over scores is always in float32")),
      inert(boolean_key("enable_padding_causal_mask", true, "of a GPU attention kernel")),
  };
}

}  // namespace switchyard
