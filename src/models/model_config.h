// The shape of a decoder and how it computes, from the config keys. One place where keys become numbers.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/dtype.h"
#include "moe/moe.h"

namespace switchyard {

enum class DecoderBlock { llama2, mistral, mixtral, deepseek, qwen3, qwen3_moe, qwen3_custom_moe };

struct RopeConfig {
  std::string type = "default";  // default, llama3.1, yarn
  double theta = 10000;          // rope_max_timescale
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3.1
  double beta_fast = 32, beta_slow = 1;                        // yarn
  std::int64_t original_positions = 0;
  bool beyond_original = false;  // max_position_embeddings is more than that: MLA scales its scores by mscale
  bool truncate = true;
  bool interleaved = false;
  bool attention_scaling = false;  // cos and sin times 0.1 ln(factor) + 1
};

struct ModelConfig {
  std::string name;
  DecoderBlock block = DecoderBlock::llama2;
  std::int64_t layers = 0, dense_layers = 0;  // dense_layers: those before the first MoE layer
  std::int64_t emb = 0, mlp = 0, moe_mlp = 0, vocab = 0;
  std::int64_t moe_emb =
      0;  // width of the tokens at the experts: emb, or the latent width of qwen3_custom_moe
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool qk_norm = false;
  bool mla = false;
  std::int64_t q_lora = 0, kv_lora = 0, nope = 0, rope_dim = 0, v_dim = 0;
  std::int64_t shared_experts = 0;
  MoeConfig moe;  // moe.experts = 0: a dense model
  RopeConfig rope;
  double attention_scale = 1;
  bool balanced_context =
      true;  // a split sequence is spread so that causal attention costs every rank the same
  float norm_epsilon = 1e-6f;
  bool tied = false;                   // logits_via_embedding
  bool normalize_tied_logits = false;  // tied logits divided by sqrt(emb)
  float logit_soft_cap = 0;
  double z_loss = 0;
  bool compat = false;
  DType dtype = DType::f32;         // of activations and of weights in use
  DType weight_dtype = DType::f32;  // of stored weights
  bool int8_cache = false;          // generation remembers keys and values in 8 bits
  std::uint32_t init_seed = 0;
  bool remat = true;
  std::set<std::string> remat_keeps;   // checkpoint names
  std::vector<std::string> trainable;  // trainable_parameters_mask; empty: all

  // Attention gives the latent tokens, the experts work on them, and a projection leads back to emb.
  bool has_latent_experts() const { return block == DecoderBlock::qwen3_custom_moe; }
  bool is_moe_layer(std::int64_t layer) const { return moe.experts > 0 && layer >= dense_layers; }
  std::int64_t moe_layers() const { return moe.experts > 0 ? layers - dense_layers : 0; }
};

// Throws Error(usage) for combinations that make no model.
ModelConfig model_config(const Config& config);

// Rotation frequencies (radians per position), one for each pair of `dim`: Su et al. 2021; llama3.1's
// wavelength bands as published with Llama 3.1; yarn after Peng et al. 2023.
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim);
// Factor on cos and sin.
double rope_amplitude(const RopeConfig& rope);

// Floating point operations of one trained token (forward and backward, 2 per multiply-add; routed experts
// count K times).
double train_flops_per_token(const ModelConfig& model, std::int64_t sequence);

}  // namespace switchyard
