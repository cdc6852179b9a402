// Declares keys of the decoder's shape: block, widths, norms, MLP, embedding, positions.
#include <cstdint>

#include "config/declaration.h"
#include "config/decoder_block.h"
#include "config/not_built.h"

namespace switchyard {
namespace {

std::vector<KeyDeclaration> position_keys() {
  return {
      choice_key("rope_type", "default", one_of({"default", "llama3.1", "yarn", "linear"}),
                 "rotary embedding: plain, with Llama 3.1's scaling by wavelength, YaRN, or positions "
                 "divided by rope_factor"),
      integer_key("rope_max_timescale", 10000, at_least(1), "base of the rotary frequencies (theta)"),
      planned(integer_key("rope_min_timescale", 1, at_least(1), "shortest rotary timescale")),
      boolean_key("rope_use_scale", true,
                  "whether rope_type=llama3.1 scales; false: it means rope_type=default"),
      float_key("rope_factor", 40.0, more_than(0),
                "how far the context is stretched (yarn, llama3.1, linear; 8 for llama3.1 unless given)"),
      float_key("rope_low_freq_factor", 1.0, more_than(0),
                "llama3.1: longer wavelengths than original/this are scaled"),
      float_key("rope_high_freq_factor", 4.0, more_than(0),
                "llama3.1: shorter wavelengths than original/this are kept"),
      integer_key("max_position_embeddings", 163840, at_least(1),
                  "longest context of the stretched model, in tokens"),
      integer_key("original_max_position_embeddings", 4096, at_least(1),
                  "context before stretching (8192 for llama3.1 unless given)"),
      integer_key("beta_fast", 32, at_least(0), "yarn: rotations above which a frequency is kept"),
      integer_key("beta_slow", 1, at_least(0), "yarn: rotations below which a frequency is fully stretched"),
      float_key("mscale", 1.0, at_least(0), "yarn: factor of the attention temperature"),
      boolean_key("rope_interleave", true, "yarn and MLA: rotate neighbouring elements, not halves"),
      boolean_key("rope_truncate", true, "yarn: round the borders of the ramp to whole dimensions"),
      boolean_key("rope_attention_scaling", false, "yarn: scale the rotated q and k instead of the scores"),
      number_list_key("rope_frequency_divisors", {},
                      "what the rotary frequency of each pair is divided by, one number a pair; empty: 1"),
      planned(boolean_key("rope_pairwise", false, "another layout of rotary pairs")),
      planned(float_key("rope_linear_scaling_factor", 1.0, more_than(0), "divisor of positions")),
      planned(integer_key("local_rope_max_timescale", -1, at_least_or(1, -1), "theta of local layers")),
      planned(integer_key("global_rope_max_timescale", -1, at_least_or(1, -1), "theta of global layers")),
      planned(float_key("global_rope_proportion", 0.25, between(0, 1),
                        "rotated share of a head in global layers")),
      planned(
          float_key("local_rope_proportion", 1.0, between(0, 1), "rotated share of a head in local layers")),
      float_key("partial_rotary_factor", 1.0, between(0, 1), "rotated share of a head: its first dims"),
      integer_key(
          "nope_layer_interval", -1, at_least_or(1, -1),
          "llama4: every how many layers one has no rotation and sees all tokens before; -1: none has"),
      integer_list_key("unrotated_layers", {},
                       "llama4: numbers of those layers, in place of nope_layer_interval"),
      planned(boolean_key("use_untrainable_positional_embedding", false, "add sinusoids to the embedding")),
      planned(integer_key("trainable_position_size", -1, at_least_or(1, -1), "learned position embeddings")),
      planned(boolean_key("use_mrope", false, "multimodal rotary embedding")),
  };
}

// None is accepted as in the reference, and 0 is the default, also as there.
KeyDeclaration soft_cap_key() {
  KeyDeclaration key = optional(float_key("final_logits_soft_cap", 0.0, at_least(0),
                                          "logits become cap * tanh(logits / cap); 0 or None: none"));
  key.default_value = 0.0;
  return key;
}

std::vector<KeyDeclaration> other_architecture_keys() {
  return {
      integer_key("global_parameter_scale", 1, at_least(1),
                  "a power of two by which the model grows: of three doublings one is of heads and widths of "
                  "MLPs and experts, the next of base_emb_dim, the third of layers"),
      planned(boolean_key("use_post_attn_norm", false, "a norm after attention")),
      boolean_key("use_post_ffw_norm", false, "envy: a norm of what the MLP or the experts give"),
      integer_key("inhomogeneous_layer_cycle_interval", 1, at_least(1), "layers of a repeating pattern"),
      planned(integer_key("hidden_size_per_layer_input", 0, at_least(0), "width of an embedding per layer")),
      planned(
          integer_key("vocab_size_per_layer_input", 0, at_least(0), "vocabulary of an embedding per layer")),
      planned(integer_key("num_kv_shared_layers", 0, at_least(0), "layers that share keys and values")),
      planned(boolean_key("use_double_wide_mlp", false, "MLP of twice the width in layers that share keys")),
      planned(boolean_key("fused_qkv", false, "one weight for query, key and value")),
      planned(boolean_key("fused_mlp", false, "one weight for gate and up")),
      integer_key("mtp_num_layers", 0, at_least(0),
                  "layers of multi-token prediction: each is like the last layer with attention and predicts "
                  "one token further"),
      with_role(KeyRole::training,
                float_key("mtp_loss_scaling_factor", 0.1, at_least(0), "factor of their loss")),
      boolean_key("mtp_own_norm", true,
                  "each of them has a final norm of its own, as published weights do; false: the model's"),
      boolean_key("mtp_reads_final_norm", false,
                  "each of them reads the output of the layer before behind its final norm, as Qwen3.5's do; "
                  "false: before it"),
      inert(boolean_key("mtp_reuse_input_embedding", false, "another way to the same embedding")),
      planned(
          integer_key("mtp_eval_target_module", 0, at_least(0), "which of those layers evaluation looks at")),
      planned(integer_key("mhc_expansion_rate", 1, at_least(1), "residual streams of hyper-connections")),
      inert(integer_key("sinkhorn_iterations", 20, at_least(1), "only with mhc_expansion_rate above 1")),
      planned(boolean_key("enable_mhc_lite", false, "a cheaper form of hyper-connections")),
      planned(integer_list_key("engram_layers", {}, "layers with an n-gram memory")),
      inert(integer_key("engram_max_ngram_size", 3, at_least(1), "only with engram_layers")),
      inert(integer_key("engram_num_heads", 8, at_least(1), "only with engram_layers")),
      inert(integer_key("engram_head_dim", 1280, at_least(1), "only with engram_layers")),
      inert(integer_list_key("engram_vocab_bases", {}, "only with engram_layers")),
      inert(integer_key("engram_kernel_size", 4, at_least(1), "only with engram_layers")),
      inert(integer_key("engram_seed", 0, any_number(), "only with engram_layers")),
      planned(choice_key("training_objective", "causal_lm", one_of({"causal_lm"}, {"block_diffusion"}),
                         "what is learned")),
  };
}

std::vector<std::string> block_words() {
  std::vector<std::string> words;
  for (const DecoderBlock* block : decoder_blocks()) {
    words.emplace_back(block->name);
    if (!block->other_name.empty()) words.emplace_back(block->other_name);
  }
  return words;
}

}  // namespace

std::vector<KeyDeclaration> model_keys() {
  std::vector<KeyDeclaration> keys = {
      choice_key("decoder_block", "llama2", one_of(block_words(), blocks_not_built()),
                 "kind of decoder layer; default means llama2, qwen3_5 means qwen3_5_moe"),
      integer_key("base_emb_dim", 2048, at_least(1), "width of the model (M)"),
      integer_key("base_num_decoder_layers", 16, at_least(1), "number of decoder layers"),
      integer_key("base_num_query_heads", 16, at_least(1), "query heads"),
      integer_key("base_num_kv_heads", 16, at_least(1), "key and value heads; divides base_num_query_heads"),
      integer_key("head_dim", 128, at_least(1), "width of a head (not used by MLA)"),
      integer_key("base_mlp_dim", 7168, at_least(1), "width of the dense MLP"),
      text_list_key(
          "mlp_activations", {"silu", "linear"},
          "activations multiplied with each other in the MLP: silu,linear; gpt_oss: sigmoid,linear"),
      float_key("mlp_activations_limit", -1.0, any_number(), "gpt_oss: clamp of the experts' gates"),
      float_key("mlp_activations_alpha", 1.702, more_than(0), "gpt_oss: factor in their logistic function"),
      integer_key("vocab_size", 32000, between(1, INT32_MAX), "rows of the embedding; ids are 32 bits wide"),
      float_key("normalization_layer_epsilon", 1e-5, at_least(0), "epsilon of RMSNorm"),
      boolean_key("logits_via_embedding", false, "the head is the embedding (tied)"),
      boolean_key("normalize_embedding_logits", true, "divide tied logits by sqrt(width)"),
      soft_cap_key(),
      planned(float_key("dense_init_scale", 1.0, more_than(0), "scale of the initial weights")),
      float_key("dropout_rate", 0.0, between(0, 1), "share of activations dropped; only 0 is built"),
      boolean_key("enable_dropout", true, "whether dropout_rate applies"),
      integer_key("init_weights_seed", 0, between(0, UINT32_MAX), "seed of the initial weights"),
      choice_key("dtype", "bfloat16", one_of({"float32", "bfloat16"}), "type of activations"),
      must_stay(choice_key("weight_dtype", "float32", one_of({"float32", "bfloat16"}),
                           "type in which weights are kept")),
      planned(boolean_key("activations_in_float32", false, "activation functions in float32")),
      planned(choice_key("quantization", "", one_of({"", "int8", "int4", "fp8", "nanoo_fp8", "fp8_full"}),
                         "quantized matrix products")),
      boolean_key("quantize_kvcache", false, "generation remembers keys and values in kv_quant_dtype"),
      choice_key("kv_quant_dtype", "int8", one_of({"int8", "int4", "fp8"}),
                 "with quantize_kvcache: int8 (int4 and fp8 are planned)"),
      choice_key("kv_quant_axis", "dkv", one_of({"dkv", "heads_and_dkv", ""}),
                 "with quantize_kvcache, what shares a scale: the numbers of a token's head (dkv; the "
                 "reference's default, heads_and_dkv, is planned)"),
      planned(boolean_key("checkpoint_is_quantized", false, "the weights to load are quantized")),
      planned(optional(integer_key("weight_sparsity_n", 0, at_least(1), "n of n:m sparse weights"))),
      planned(optional(integer_key("weight_sparsity_m", 0, at_least(1), "m of n:m sparse weights"))),
  };
  for (auto&& more : {position_keys(), other_architecture_keys()})
    keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

}  // namespace switchyard
