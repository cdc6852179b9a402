// What a model is: all that decides which function it computes of its weights, and nothing of how it is run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/attention/visible_keys.h"
#include "moe/moe.h"

namespace switchyard {

struct RopeConfig {
  std::string type = "default";  // default, llama3.1, yarn, linear
  double share = 1;              // of a head's width that is rotated: its first dims (partial_rotary_factor)
  double theta = 10000;          // rope_max_timescale
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3.1
  double beta_fast = 32, beta_slow = 1;                        // yarn
  std::int64_t original_positions = 0;
  bool beyond_original = false;  // max_position_embeddings is more than that: MLA scales its scores by mscale
  bool truncate = true;
  bool interleaved = false;
  bool attention_scaling = false;  // cos and sin times 0.1 ln(factor) + 1
  std::vector<double> divisors;    // of each pair's frequency; empty: none
};

// What layers of one model differ in.
struct LayerSpec {
  bool experts = false;   // its feed-forward part is an MoE layer
  bool delta = false;     // a gated delta net in place of attention
  bool windowed = false;  // a token sees Architecture::window keys, its own included, not all before it
  // Queries and keys are not rotated, and a token sees all before it, whatever Architecture::chunk is.
  bool unrotated = false;

  bool operator==(const LayerSpec&) const = default;
};

// A field more needs its line in the table of architecture.cc, which does not compile without.
struct Architecture {
  std::int64_t layers = 0;
  // Layers after those, each of which predicts one token further ahead (models/prediction.h).
  std::int64_t predictions = 0;
  bool prediction_norms = false;       // each has a final norm of its own
  std::vector<LayerSpec> layer_specs;  // one a layer, then one a prediction layer
  std::int64_t emb = 0, mlp = 0, moe_mlp = 0, vocab = 0;
  bool latent_experts = false;  // decoder_block.h
  std::int64_t moe_emb = 0;     // width of the tokens at the experts: emb, or the latent width
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;
  std::int64_t chunk = 0;  // a token of a rotated layer sees keys of its own chunk of so many places; 0: all
  bool qk_unit_norm = false;  // rotated queries and keys are normed, without weights
  float qkv_clip = 0;         // bound of queries, keys and values, before rotation; 0: none
  // Queries of layers without rotation are times 1 + growth · ln(1 + floor((position + 1) / positions)).
  double query_growth = 0;
  std::int64_t query_growth_positions = 1;
  bool attention_gate = false;  // each head's output is times the logistic function of a product with x
  bool sinks = false;           // each head's softmax has one more score, a parameter
  bool qk_norm = false;
  bool qk_norm_of_heads = false;  // over all heads together, not each by itself
  // Biases of the products that read x (query, key and value; of MLA those that make latents), and of the
  // last.
  bool attention_bias = false, attention_out_bias = false;
  bool mla = false;
  bool post_mlp_norm = false;  // what the MLP or the experts give is normed before it is added
  std::int64_t q_lora = 0, kv_lora = 0, nope = 0, rope_dim = 0, v_dim = 0;
  // Of MLA's indexer, which chooses the keys that a token attends to; no heads: there is none.
  std::int64_t indexer_heads = 0, indexer_dim = 0;
  std::int64_t indexer_topk = 0;     // keys of a token
  bool indexer_interleaved = false;  // its rotations turn neighbours, not halves
  // Of the gated delta net.
  std::int64_t delta_key_heads = 0, delta_value_heads = 0, delta_key_dim = 0, delta_value_dim = 0;
  std::int64_t delta_taps = 0;     // of its convolution
  bool delta_unit_vectors = true;  // its queries and keys are divided by their lengths
  std::int64_t shared_experts = 0;
  std::int64_t shared_mlp = 0;  // hidden width of all of them together
  bool shared_gate = false;     // their output is times the logistic function of a product with x
  MoeConfig moe;                // moe.experts = 0: a dense model
  RopeConfig rope;
  double attention_scale = 1;
  float norm_epsilon = 1e-6f;
  bool norm_plus_one = false;          // norms multiply by 1 + weight
  float latent_norm_epsilon = 1e-6f;   // of MLA's norms of latents
  bool tied = false;                   // logits_via_embedding
  bool normalize_tied_logits = false;  // tied logits divided by sqrt(emb)
  float logit_soft_cap = 0;
  bool compat = false;          // as MaxText computes it,
  bool compat_2026_08 = false;  // and as it did in August 2026

  const LayerSpec& layer(std::int64_t i) const { return layer_specs[static_cast<std::size_t>(i)]; }
  bool scales_queries() const;  // whether a layer's queries have such a factor other than 1
  float norm_offset() const { return norm_plus_one ? 1.0f : 0.0f; }
  bool has_indexer() const { return indexer_heads > 0; }
  bool has_delta() const;  // some layer has a gated delta net
  // What a token of attention in the layer sees of those before it.
  KeyWindow seen_in(const LayerSpec& spec) const {
    return {.window = spec.windowed ? window : 0, .chunk = spec.unrotated ? 0 : chunk};
  }
  // Tokens of a chunk, counted from the beginning of a document; MaxText counts from that of the row.
  std::int64_t chunk_of_documents() const { return compat ? 0 : chunk; }
  // Layers and prediction layers, which are numbered on.
  std::int64_t depth() const { return static_cast<std::int64_t>(layer_specs.size()); }
  // The numbers of the layers with experts, ascending; prediction layers are among them.
  std::vector<std::int64_t> moe_layers() const;
};

// The same model without its prediction layers.
template <typename Model>
Model without_predictions(Model model) {
  model.predictions = 0;
  model.prediction_norms = false;
  model.layer_specs.resize(static_cast<std::size_t>(model.layers));
  return model;
}

// Shape: the weights have other shapes, or there are others of them. Function: the same weights give other
// numbers.
enum class Aspect { shape, function };

// A member of every layer's spec. It is shown as the numbers of the layers that have it.
struct LayerFlag {
  std::vector<LayerSpec>* layers;
  bool LayerSpec::*member;
};

using FieldPointer = std::variant<bool*, std::int64_t*, std::uint32_t*, float*, double*, std::string*,
                                  RouterScore*, LayerFlag, std::vector<double>*>;

struct ArchitectureField {
  const char* name;  // in inspect and the hash
  const char* key;   // the config key that sets it, or that decides it with others
  const char* meaning;
  Aspect aspect;
  FieldPointer (*of)(Architecture&);
  bool (*applies)(const Architecture&);  // whether it has a say in that model
};

// Every field of Architecture, of its LayerSpec, MoeConfig and RopeConfig once; those of shape first.
std::span<const ArchitectureField> architecture_fields();

// Its value, or null where it has no say in that model.
nlohmann::json value_of(const ArchitectureField& field, const Architecture& architecture);

// The fields that have a say, by name.
nlohmann::json architecture_json(const Architecture& architecture);

// XXH3-64 of architecture_json's text, in 16 hexadecimal digits. Numbers are rounded to 12 digits: machines
// may differ in the last one of a logarithm.
std::string architecture_hash(const Architecture& architecture);

// The first field by which two models compute different functions of the same weights: sizes, norms,
// positions, routing; not dtypes, layouts, losses or seeds of weights. Null: none.
const ArchitectureField* differing_field(const Architecture& a, const Architecture& b);

// Its config key, or "".
std::string differing_key(const Architecture& a, const Architecture& b);

}  // namespace switchyard
