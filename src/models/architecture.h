// Architecture: everything that decides which function a model computes, and nothing about how it is run.
#pragma once

#include <algorithm>
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
  double share = 1;              // rotated share of a head's width: its first dims (partial_rotary_factor)
  double theta = 10000;          // rope_max_timescale
  double factor = 1;
  double low_frequency_factor = 1, high_frequency_factor = 4;  // llama3.1
  double beta_fast = 32, beta_slow = 1;                        // yarn
  std::int64_t original_positions = 0;
  bool beyond_original = false;  // max_position_embeddings is larger: MLA scales its scores by mscale
  bool truncate = true;
  bool interleaved = false;
  bool attention_scaling = false;  // cos and sin are multiplied by 0.1 ln(factor) + 1
  std::vector<double> divisors;    // divisor of each pair's frequency; empty: none

  bool operator==(const RopeConfig&) const = default;
};

// A kind of attention. Layers of one kind compute alike.
struct AttentionKind {
  bool mla = false;  // keys and values come from a latent
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t window = 0;  // a token sees so many keys, its own included; 0: all
  std::int64_t chunk = 0;   // a token sees keys of its own chunk of so many tokens; 0: all
  bool rotated = true;      // queries and keys are rotated
  // Queries are multiplied by 1 + growth · ln(1 + floor((position + offset) / positions)); growth 0: by 1.
  double query_growth = 0;
  std::int64_t query_growth_positions = 1;
  std::int64_t query_growth_offset = 1;
  bool qk_norm = false;
  bool qk_norm_of_heads = false;  // the norm is over all heads together, not over each head
  bool qk_unit_norm = false;      // rotated queries and keys are normalised, without weights
  float qkv_clip = 0;             // queries, keys and values are clipped to it before rotation; 0: no
  bool gate = false;              // each head's output is multiplied by the sigmoid of a projection of x,
  bool gate_of_heads = false;     // which has one number a head, not one for each value,
  bool gate_softplus = false;     // and of which softplus is taken, not the sigmoid
  float value_scale = 1;          // values are multiplied by it
  bool sinks = false;             // each head's softmax has one additional score, a parameter
  // `bias`: of the projections that read x (query, key and value; for MLA those to latents). `out_bias`: of
  // the output projection.
  bool bias = false, out_bias = false;
  std::int64_t q_lora = 0, kv_lora = 0, nope = 0, rope_dim = 0, v_dim = 0;
  float latent_norm_epsilon = 1e-6f;  // epsilon of MLA's norms of latents
  // MLA's indexer, which chooses the keys that a token attends to. 0 heads: no indexer.
  std::int64_t indexer_heads = 0, indexer_dim = 0;
  std::int64_t indexer_topk = 0;     // keys for each token, also of layers that share a choice
  bool indexer_interleaved = false;  // its rotation pairs neighbouring dims, not halves
  double scale = 1;                  // factor of the scores
  RopeConfig rope;

  bool has_indexer() const { return indexer_heads > 0; }
  bool scales_queries() const { return query_growth != 0; }
  std::int64_t query_dim() const { return mla ? nope + rope_dim : head_dim; }
  KeyWindow seen() const { return {.window = window, .chunk = chunk}; }

  bool operator==(const AttentionKind&) const = default;
};

// A gated delta net, in place of attention.
struct DeltaKind {
  std::int64_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t taps = 0;     // taps of its convolution
  bool unit_vectors = true;  // its queries and keys are scaled to length 1

  bool operator==(const DeltaKind&) const = default;
};

// A dense MLP.
struct MlpKind {
  std::int64_t width = 0;  // hidden
  float gate_limit = 0;    // as MoeConfig::shared_limit; 0: none

  bool operator==(const MlpKind&) const = default;
};

// The parts of a layer: numbers into the model's lists of kinds; -1: the layer has no such part.
struct LayerSpec {
  int attention = 0, delta = -1;
  int mlp = 0, moe = -1;  // one of them
  int choice_of = -1;     // attends to the keys that the indexer of that layer chose

  bool has_experts() const { return moe >= 0; }
  bool operator==(const LayerSpec&) const = default;
};

// A new field needs a line in the table of architecture.cc, which does not compile without it.
struct Architecture {
  std::int64_t layers = 0;
  // Prediction layers after the layers; each predicts one token further ahead (models/prediction.h).
  std::int64_t predictions = 0;
  bool prediction_norms = false;          // each prediction layer has its own final norm
  bool prediction_of_normed = false;      // they read the output before them behind its final norm
  std::vector<LayerSpec> layer_specs;     // one for each layer, then one for each prediction layer
  std::vector<AttentionKind> attentions;  // one at least
  std::vector<DeltaKind> deltas;
  std::vector<MlpKind> mlps{MlpKind()};      // one at least
  std::vector<MoeConfig> moes{MoeConfig()};  // one at least; its experts = 0: a dense model
  std::int64_t emb = 0, moe_mlp = 0, vocab = 0;
  bool latent_experts = false;  // config/decoder_block.h
  std::int64_t moe_emb = 0;     // width of the experts' input: emb, or the latent width
  bool post_mlp_norm = false;   // the output of the MLP or the experts is normalised before it is added
  std::int64_t shared_experts = 0;
  std::int64_t shared_mlp = 0;  // hidden width of all shared experts together
  bool shared_gate = false;     // their output is multiplied by the sigmoid of a projection of x
  float norm_epsilon = 1e-6f;
  bool norm_plus_one = false;          // norms multiply by 1 + weight
  bool tied = false;                   // logits_via_embedding
  bool normalize_tied_logits = false;  // tied logits are divided by sqrt(emb)
  float logit_soft_cap = 0;
  bool compat = false;          // computes as MaxText does,
  bool compat_2026_08 = false;  // and as MaxText did in August 2026

  const LayerSpec& layer(std::int64_t i) const { return layer_specs[static_cast<std::size_t>(i)]; }
  // The kind of attention of a layer that has one.
  const AttentionKind& attention_of(const LayerSpec& spec) const {
    return attentions[static_cast<std::size_t>(spec.attention)];
  }
  // The first kind: what it says of sizes, norms and latents holds for all kinds of the families that ask.
  const AttentionKind& attention() const { return attentions.front(); }
  const MlpKind& mlp_of(const LayerSpec& spec) const { return mlps[static_cast<std::size_t>(spec.mlp)]; }
  const MoeConfig& moe_of(const LayerSpec& spec) const { return moes[static_cast<std::size_t>(spec.moe)]; }
  // The first kind of each: what it says of sizes and routing holds for all.
  const MlpKind& mlp() const { return mlps.front(); }
  const MoeConfig& moe() const { return moes.front(); }
  const DeltaKind& delta_of(const LayerSpec& spec) const {
    return deltas[static_cast<std::size_t>(spec.delta)];
  }
  float norm_offset() const { return norm_plus_one ? 1.0f : 0.0f; }
  bool has_indexer() const;  // true when some layer has an indexer; others may share its choice
  bool has_delta() const;    // true when some layer has a gated delta net
  // The keys that a token of that layer sees.
  KeyWindow seen_in(const LayerSpec& spec) const {
    return spec.attention < 0 ? KeyWindow() : attention_of(spec).seen();
  }
  // The largest window, or chunk, of all kinds; 0: none has one.
  std::int64_t window() const;
  std::int64_t chunk() const;
  // Tokens in a chunk that counts from the start of a document; 0 under compat (it counts from the row's).
  std::int64_t chunk_of_documents() const { return compat ? 0 : chunk(); }
  // Number of layers and prediction layers, which share one numbering.
  std::int64_t depth() const { return static_cast<std::int64_t>(layer_specs.size()); }
  // The numbers of the layers with experts, ascending, prediction layers included.
  std::vector<std::int64_t> moe_layers() const;
};

// The number of a kind in its list, to which it is added where the list lacks it.
template <typename Kind>
int number_of(std::vector<Kind>& kinds, const Kind& kind) {
  const auto found = std::ranges::find(kinds, kind);
  const auto number = static_cast<int>(found - kinds.begin());
  if (found == kinds.end()) kinds.push_back(kind);
  return number;
}

// Returns the model without its prediction layers.
template <typename Model>
Model without_predictions(Model model) {
  model.predictions = 0;
  model.prediction_norms = false;
  model.layer_specs.resize(static_cast<std::size_t>(model.layers));
  return model;
}

// Shape: the field changes the weights' shapes or which weights exist.
// Function: with the same weights the field changes the numbers.
enum class Aspect { shape, function };

// A property of layers, shown as the numbers of the layers that have it.
struct LayersWith {
  Architecture* model;
  bool (*has)(const Architecture&, const LayerSpec&);
};
// The number of each layer's kind, shown as a list.
struct KindOfLayers {
  Architecture* model;
  int (*number)(const LayerSpec&);
};
// A field of a kind: that of each kind where it has a say. It is shown as one value where all are equal.
template <typename T>
using OfKinds = std::vector<T*>;

using FieldPointer =
    std::variant<bool*, std::int64_t*, float*, OfKinds<bool>, OfKinds<std::int64_t>, OfKinds<std::uint32_t>,
                 OfKinds<float>, OfKinds<double>, OfKinds<std::string>, OfKinds<std::vector<double>>,
                 OfKinds<RouterScore>, OfKinds<GateClamp>, LayersWith, KindOfLayers>;

struct ArchitectureField {
  const char* name;  // the name in `inspect` and in the hash
  const char* key;   // the config key that sets it, alone or with others
  const char* meaning;
  Aspect aspect;
  FieldPointer (*of)(Architecture&);
  bool (*applies)(const Architecture&);  // true when the field matters in that model
};

// Every field of Architecture and of the structs in it once, shape fields first.
std::span<const ArchitectureField> architecture_fields();

// The field's value, or null when the field does not matter in that model.
nlohmann::json value_of(const ArchitectureField& field, const Architecture& architecture);

// The fields that matter in that model, by name.
nlohmann::json architecture_json(const Architecture& architecture);

// XXH3-64 of architecture_json's text, in 16 hexadecimal digits. Numbers are rounded to 12 digits, because
// machines may differ in the last digit of a logarithm.
std::string architecture_hash(const Architecture& architecture);

// The first field by which two models compute different functions of the same weights: sizes, norms,
// positions, routing; not dtypes, layouts, losses or seeds of weights. Null: none.
const ArchitectureField* differing_field(const Architecture& a, const Architecture& b);

// The config key of the differing field, or "".
std::string differing_key(const Architecture& a, const Architecture& b);

}  // namespace switchyard
