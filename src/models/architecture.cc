#include "models/architecture.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "core/field_count.h"

namespace switchyard {
namespace {

constexpr Aspect kShape = Aspect::shape, kFunction = Aspect::function;

constexpr auto kAlways = [](const Architecture&) { return true; };
template <typename Has>
bool any_kind(const Architecture& a, const Has& has) {
  return std::ranges::any_of(a.attentions, has);
}
// A field that matters in models of which some kind of attention has that.
#define SOME_KIND(condition) \
  [](const Architecture& a) { return any_kind(a, [](const AttentionKind& k) { return condition; }); }

constexpr auto kGrouped = SOME_KIND(!k.mla);
constexpr auto kLatent = SOME_KIND(k.mla);
constexpr auto kSparse = [](const Architecture& a) { return a.moe().experts > 0; };
constexpr auto kChosen = [](const Architecture& a) { return a.moe().experts > 0 && !a.moe().random_routing; };
// True when the weights are neither the gate's outputs nor a softmax of their own.
constexpr auto kWeighted = [](const Architecture& a) {
  return a.moe().experts > 0 && !a.moe().random_routing && !a.moe().softmax_over_selected;
};
constexpr auto kInGroups = [](const Architecture& a) { return a.moe().experts > 0 && a.moe().groups > 1; };
constexpr auto kStretched = SOME_KIND(k.rope.type != "default");
constexpr auto kStretchedByWave = SOME_KIND(k.rope.type == "llama3.1" || k.rope.type == "yarn");
constexpr auto kLlama3 = SOME_KIND(k.rope.type == "llama3.1");
constexpr auto kYarn = SOME_KIND(k.rope.type == "yarn");
constexpr auto kWindowed = SOME_KIND(k.window > 0);
constexpr auto kUnrotated = SOME_KIND(!k.rotated);
constexpr auto kScalesQueries = SOME_KIND(k.scales_queries());
// Kinds that differ in more than what layers see need a list of their layers.
constexpr auto kUnlikeKinds = [](const Architecture& a) {
  return any_kind(a, [&](AttentionKind k) {
    const AttentionKind& first = a.attentions.front();
    k.window = first.window;
    k.chunk = first.chunk;
    k.rotated = first.rotated;
    k.query_growth = first.query_growth;
    k.query_growth_positions = first.query_growth_positions;
    k.query_growth_offset = first.query_growth_offset;
    return k != first;
  });
};
constexpr auto kDelta = [](const Architecture& a) { return a.has_delta(); };
constexpr auto kIndexed = [](const Architecture& a) { return a.has_indexer(); };
constexpr auto kPredicting = [](const Architecture& a) { return a.predictions > 0; };
constexpr auto kClamped = [](const Architecture& a) {
  return std::ranges::any_of(a.moes, [](const MoeConfig& m) { return m.experts > 0 && m.gate_limit != 0; });
};
constexpr auto kSharedLimit = [](const Architecture& a) {
  return std::ranges::any_of(a.moes, [](const MoeConfig& m) { return m.shared_limit != 0; });
};
constexpr auto kMlpLimit = [](const Architecture& a) {
  return std::ranges::any_of(a.mlps, [](const MlpKind& m) { return m.gate_limit != 0; });
};

// A field that came after models were hashed has no say at the value that all of them had: hashes stay.
//
// A line: name, key, meaning, aspect, the field, where it has a say. A field that takes the say from others
// comes before them, so that it is the one that is named.
#define FIELD(member) [](Architecture& a) -> FieldPointer { return &a.member; }
#define OF_KINDS(list, member, condition)                                            \
  [](Architecture& a) -> FieldPointer {                                              \
    OfKinds<std::remove_reference_t<decltype(a.list.front().member)>> places;        \
    for (auto& k : a.list) {                                                         \
      if (condition) places.push_back(&k.member);                                    \
    }                                                                                \
    if (places.empty() && !a.list.empty()) places.push_back(&a.list.front().member); \
    return places;                                                                   \
  }
#define KIND(member) OF_KINDS(attentions, member, true)
#define KIND_WITH(member, condition) OF_KINDS(attentions, member, condition)
#define DELTA(member) OF_KINDS(deltas, member, true)
#define MOE(member) OF_KINDS(moes, member, true)
#define LAYERS(condition)                                                  \
  [](Architecture& a) -> FieldPointer {                                    \
    return LayersWith{&a, [](const Architecture& of, const LayerSpec& l) { \
                        (void)of;                                          \
                        return condition;                                  \
                      }};                                                  \
  }
#define KIND_OF_LAYERS(member)                                            \
  [](Architecture& a) -> FieldPointer {                                   \
    return KindOfLayers{&a, [](const LayerSpec& l) { return l.member; }}; \
  }

constexpr ArchitectureField kFields[] = {
    {"layers", "base_num_decoder_layers", "layers", kShape, FIELD(layers), kAlways},
    {"predictions", "mtp_num_layers", "layers that predict further tokens", kShape, FIELD(predictions),
     kPredicting},
    {"prediction_norms", "mtp_own_norm", "each of them has a final norm of its own", kShape,
     FIELD(prediction_norms), [](const Architecture& a) { return kPredicting(a) && a.prediction_norms; }},
    {"emb", "base_emb_dim", "width of a token", kShape, FIELD(emb), kAlways},
    {"vocab", "vocab_size", "tokens there are", kShape, FIELD(vocab), kAlways},
    {"mla", "attention_type", "keys and values come from a latent", kShape, KIND(mla), kAlways},
    {"heads", "base_num_query_heads", "heads of queries", kShape, KIND(heads), kAlways},
    {"kv_heads", "base_num_kv_heads", "heads of keys and values", kShape, KIND(kv_heads), kGrouped},
    {"head_dim", "head_dim", "width of a head", kShape, KIND(head_dim), kGrouped},
    {"qk_norm", "use_qk_norm", "queries and keys are normed", kShape, KIND(qk_norm), kGrouped},
    {"qk_norm_of_heads", "qk_norm_over", "those norms are over all heads together", kShape,
     KIND(qk_norm_of_heads), SOME_KIND(!k.mla && k.qk_norm && k.qk_norm_of_heads)},
    {"post_mlp_norm", "use_post_ffw_norm", "what the MLP or the experts give is normed", kShape,
     FIELD(post_mlp_norm), [](const Architecture& a) { return a.post_mlp_norm; }},
    {"attention_bias", "attention_bias", "products with what attention reads have biases", kShape, KIND(bias),
     SOME_KIND(k.bias)},
    {"attention_out_bias", "attention_output_bias", "attention's last product has a bias", kShape,
     KIND(out_bias), SOME_KIND(k.out_bias)},
    {"attention_gate", "decoder_block", "attention's output has a gate", kShape, KIND(gate),
     SOME_KIND(k.gate)},
    {"attention_gate_of_heads", "attention_gate", "that gate is one number a head", kShape,
     KIND(gate_of_heads), SOME_KIND(k.gate_of_heads)},
    {"delta_layers", "delta_layers", "layers with a gated delta net", kShape, LAYERS(l.delta >= 0), kDelta},
    {"delta_key_heads", "gdn_num_key_heads", "its heads of queries and keys", kShape, DELTA(key_heads),
     kDelta},
    {"delta_value_heads", "gdn_num_value_heads", "its heads of values", kShape, DELTA(value_heads), kDelta},
    {"delta_key_dim", "gdn_key_head_dim", "width of its queries and keys", kShape, DELTA(key_dim), kDelta},
    {"delta_value_dim", "gdn_value_head_dim", "width of its values", kShape, DELTA(value_dim), kDelta},
    {"delta_taps", "gdn_conv_kernel_dim", "taps of its convolution", kShape, DELTA(taps), kDelta},
    {"sinks", "attention_sink", "each head's softmax has a sink", kShape, KIND(sinks), SOME_KIND(k.sinks)},
    {"q_lora", "q_lora_rank", "width of the queries' latent, 0: none", kShape, KIND(q_lora), kLatent},
    {"kv_lora", "kv_lora_rank", "width of the latent of keys and values", kShape, KIND(kv_lora), kLatent},
    {"nope", "qk_nope_head_dim", "width of a head that is not rotated", kShape, KIND(nope), kLatent},
    {"rope_dim", "qk_rope_head_dim", "width of a head that is rotated", kShape, KIND(rope_dim), kLatent},
    {"v_dim", "v_head_dim", "width of a head's values", kShape, KIND(v_dim),
     SOME_KIND(k.mla || k.v_dim != k.head_dim)},
    // Before what a layer with such a choice lacks.
    {"shared_choices", "shared_choice_layers", "the layer whose choice of keys each layer takes", kShape,
     KIND_OF_LAYERS(choice_of),
     [](const Architecture& a) {
       return std::ranges::any_of(a.layer_specs, [](const LayerSpec& l) { return l.choice_of >= 0; });
     }},
    {"indexer_heads", "use_indexer", "heads of the indexer that chooses keys", kShape, KIND(indexer_heads),
     kIndexed},
    {"indexer_dim", "indexer_head_dim", "width of its heads", kShape, KIND(indexer_dim), kIndexed},
    {"experts", "num_experts", "routed experts of a layer", kShape, MOE(experts), kAlways},
    {"moe_layers", "first_num_dense_layers", "layers that have experts", kShape, LAYERS(l.has_experts()),
     kSparse},
    {"mlp", "base_mlp_dim", "hidden width of a dense layer", kShape, OF_KINDS(mlps, width, true),
     [](const Architecture& a) { return std::ssize(a.moe_layers()) < a.depth(); }},
    {"moe_mlp", "base_moe_mlp_dim", "hidden width of an expert", kShape, FIELD(moe_mlp), kSparse},
    {"latent_experts", "decoder_block", "experts work on the latent tokens that attention gives", kShape,
     FIELD(latent_experts), kSparse},
    {"moe_emb", "moe_expert_input_dim", "width of what attention gives", kShape, FIELD(moe_emb), kAlways},
    {"shared_experts", "shared_experts", "experts that every token meets", kShape, FIELD(shared_experts),
     kSparse},
    {"shared_mlp", "shared_expert_mlp_dim", "hidden width of those together", kShape, FIELD(shared_mlp),
     [](const Architecture& a) { return a.shared_mlp != a.shared_experts * a.moe_mlp; }},
    {"shared_gate", "decoder_block", "their output has a gate", kShape, FIELD(shared_gate),
     [](const Architecture& a) { return a.shared_experts > 0 && a.shared_gate; }},
    {"tied", "logits_via_embedding", "the embedding is the head", kShape, FIELD(tied), kAlways},
    {"bias", "routed_bias", "the router has a bias", kShape, MOE(bias), kSparse},
    {"logit_bias", "routed_bias", "the router's logits have a bias", kShape, MOE(logit_bias),
     [](const Architecture& a) { return a.moe().experts > 0 && a.moe().logit_bias; }},
    {"expert_bias", "mlp_bias", "the experts' products have biases", kShape, MOE(expert_bias),
     [](const Architecture& a) { return a.moe().experts > 0 && a.moe().expert_bias; }},

    {"compat", "compat", "computes as the reference does", kFunction, FIELD(compat), kAlways},
    {"compat_2026_08", "compat", "and as it did in August 2026", kFunction, FIELD(compat_2026_08),
     [](const Architecture& a) { return a.compat_2026_08; }},
    {"norm_epsilon", "normalization_layer_epsilon", "added to a norm's mean square", kFunction,
     FIELD(norm_epsilon), kAlways},
    {"norm_plus_one", "decoder_block", "norms multiply by 1 + weight", kFunction, FIELD(norm_plus_one),
     [](const Architecture& a) { return a.norm_plus_one; }},
    {"delta_unit_vectors", "use_qk_norm_in_gdn", "the delta net's queries and keys are unit vectors",
     kFunction, DELTA(unit_vectors), kDelta},
    {"latent_norm_epsilon", "latent_norm_epsilon", "the same, of the norms of latents", kFunction,
     KIND(latent_norm_epsilon),
     [](const Architecture& a) {
       return any_kind(
           a, [&](const AttentionKind& k) { return k.mla && k.latent_norm_epsilon != a.norm_epsilon; });
     }},
    {"normalize_tied_logits", "normalize_embedding_logits", "logits are divided by sqrt(emb)", kFunction,
     FIELD(normalize_tied_logits), [](const Architecture& a) { return a.tied; }},
    {"logit_soft_cap", "final_logits_soft_cap", "bound of the logits, 0: none", kFunction,
     FIELD(logit_soft_cap), kAlways},
    {"rope_type", "rope_type", "how rotations are spread", kFunction, KIND(rope.type), kAlways},
    {"rope_share", "partial_rotary_factor", "share of a head that is rotated", kFunction, KIND(rope.share),
     SOME_KIND(!k.mla && k.rope.share != 1)},
    {"rope_theta", "rope_max_timescale", "base of the rotations' frequencies", kFunction, KIND(rope.theta),
     kAlways},
    {"rope_factor", "rope_factor", "by how much positions are stretched", kFunction, KIND(rope.factor),
     kStretched},
    {"rope_original_positions", "original_max_position_embeddings", "positions before stretching", kFunction,
     KIND(rope.original_positions), kStretchedByWave},
    {"rope_low_frequency_factor", "rope_low_freq_factor", "longer waves are stretched", kFunction,
     KIND(rope.low_frequency_factor), kLlama3},
    {"rope_high_frequency_factor", "rope_high_freq_factor", "shorter waves are not", kFunction,
     KIND(rope.high_frequency_factor), kLlama3},
    {"rope_beta_fast", "beta_fast", "with more turns not stretched", kFunction, KIND(rope.beta_fast), kYarn},
    {"rope_beta_slow", "beta_slow", "with fewer turns stretched", kFunction, KIND(rope.beta_slow), kYarn},
    {"rope_truncate", "rope_truncate", "the bounds between are whole dims", kFunction, KIND(rope.truncate),
     kYarn},
    {"rope_attention_scaling", "rope_attention_scaling", "cos and sin are times 0.1 ln(factor) + 1",
     kFunction, KIND(rope.attention_scaling), kYarn},
    {"rope_divisors", "rope_frequency_divisors", "what each pair's frequency is divided by", kFunction,
     KIND(rope.divisors), SOME_KIND(!k.rope.divisors.empty())},
    {"rope_interleaved", "rope_interleave", "neighbours are rotated, not halves", kFunction,
     KIND(rope.interleaved), kAlways},
    {"rope_beyond_original", "max_position_embeddings", "more positions than before stretching", kFunction,
     KIND(rope.beyond_original), kLatent},
    {"indexer_topk", "indexer_topk", "keys that a token attends to", kFunction, KIND(indexer_topk), kIndexed},
    {"indexer_interleaved", "indexer_rope_interleave", "the indexer's rotations turn neighbours", kFunction,
     KIND(indexer_interleaved), kIndexed},
    {"windowed_layers", "windowed_layers", "layers with that window", kFunction,
     LAYERS(of.seen_in(l).window > 0), kWindowed},
    {"window", "sliding_window_size", "keys that a token of a windowed layer sees", kFunction,
     KIND_WITH(window, k.window > 0), kWindowed},
    {"unrotated_layers", "nope_layer_interval", "layers without rotation", kFunction,
     LAYERS(l.attention >= 0 && !of.attention_of(l).rotated), kUnrotated},
    {"chunk", "chunk_attn_window_size", "places of a chunk, whose keys a rotated token sees", kFunction,
     KIND_WITH(chunk, k.chunk > 0), SOME_KIND(k.chunk != 0)},
    {"qk_unit_norm", "use_qk_norm", "rotated queries and keys are normed without weights", kFunction,
     KIND(qk_unit_norm), SOME_KIND(k.qk_unit_norm)},
    {"query_growth", "temperature_tuning", "growth of queries by position", kFunction,
     KIND_WITH(query_growth, k.scales_queries()), kScalesQueries},
    {"query_growth_positions", "temperature_tuning_floor_scale", "positions of a step of that growth",
     kFunction, KIND_WITH(query_growth_positions, k.scales_queries()), kScalesQueries},
    {"query_growth_offset", "temperature_tuning_offset", "what is added to the position for it", kFunction,
     KIND_WITH(query_growth_offset, k.scales_queries()),
     SOME_KIND(k.scales_queries() && k.query_growth_offset != 1)},
    {"attention_gate_softplus", "attention_gate_curve", "attention's gate is a softplus, not a sigmoid",
     kFunction, KIND(gate_softplus), SOME_KIND(k.gate_softplus)},
    {"value_scale", "attention_value_scale", "factor of the values", kFunction, KIND(value_scale),
     SOME_KIND(k.value_scale != 1)},
    {"qkv_clip", "clip_qkv", "bound of queries, keys and values", kFunction, KIND(qkv_clip),
     SOME_KIND(k.qkv_clip != 0)},
    {"gate_limit", "mlp_activations_limit", "clamp of the experts' gates", kFunction, MOE(gate_limit),
     kClamped},
    {"gate_clamp", "expert_gate_clamp", "where the experts' gates are clamped", kFunction, MOE(gate_clamp),
     [](const Architecture& a) {
       return std::ranges::any_of(a.moes, [](const MoeConfig& m) { return m.gate_clamp != GateClamp(); });
     }},
    {"shared_gate_limit", "shared_gate_limits", "clamp of the shared experts' gates", kFunction,
     MOE(shared_limit), kSharedLimit},
    {"mlp_gate_limit", "shared_gate_limits", "clamp of dense layers' gates", kFunction,
     OF_KINDS(mlps, gate_limit, true), kMlpLimit},
    {"gate_alpha", "mlp_activations_alpha", "factor in the logistic function of a clamped gate", kFunction,
     MOE(gate_alpha), kClamped},
    {"attention_scale", "mscale", "factor of the scores", kFunction, KIND(scale), kAlways},
    {"slots", "num_experts_per_tok", "experts of a token", kFunction, MOE(slots), kSparse},
    {"random_routing", "use_random_routing", "experts are drawn", kFunction, MOE(random_routing), kSparse},
    {"random_seed", "init_weights_seed", "seed of those draws", kFunction, MOE(random_seed),
     [](const Architecture& a) { return a.moe().experts > 0 && a.moe().random_routing; }},
    {"score", "routed_score_func", "what the router makes of logits", kFunction, MOE(score), kChosen},
    {"softmax_over_selected", "routed_score_func", "weights are a softmax of the chosen scores", kFunction,
     MOE(softmax_over_selected), kChosen},
    {"normalise", "norm_topk_prob", "weights are divided by their sum", kFunction, MOE(normalise), kWeighted},
    {"normalise_epsilon", "routed_score_func", "added to that sum", kFunction, MOE(normalise_epsilon),
     [](const Architecture& a) { return kWeighted(a) && a.moe().normalise; }},
    {"scaling", "routed_scaling_factor", "factor of the weights", kFunction, MOE(scaling), kWeighted},
    {"choose_by_logit", "decoder_block", "experts are chosen by logits, not by their scores", kFunction,
     MOE(choose_by_logit), [](const Architecture& a) { return kChosen(a) && a.moe().choose_by_logit; }},
    {"weights_on_inputs", "decoder_block", "weights multiply what experts take", kFunction,
     MOE(weights_on_inputs),
     [](const Architecture& a) { return a.moe().experts > 0 && a.moe().weights_on_inputs; }},
    {"weights_include_bias", "compat", "weights hold the router's bias", kFunction, MOE(weights_include_bias),
     [](const Architecture& a) { return a.moe().experts > 0 && a.moe().bias; }},
    {"given_as_maxtext", "compat", "replayed experts are weighed as MaxText does", kFunction,
     MOE(given_as_maxtext), [](const Architecture& a) { return a.moe().given_as_maxtext; }},
    {"groups", "n_routing_groups", "groups of experts that limit the choice", kFunction, MOE(groups),
     kInGroups},
    {"groups_by_two_best", "decoder_block", "a group scores the sum of its two best", kFunction,
     MOE(groups_by_two_best),
     [](const Architecture& a) { return kInGroups(a) && a.moe().groups_by_two_best; }},
    {"kept_groups", "topk_routing_group", "groups a token may choose from", kFunction, MOE(kept_groups),
     kInGroups},
    {"prediction_of_normed", "mtp_reads_final_norm",
     "what predicts reads the output before behind the final norm", kFunction, FIELD(prediction_of_normed),
     [](const Architecture& a) { return kPredicting(a) && a.prediction_of_normed; }},
    {"attention_layers", "decoder_block", "the kind of attention of each layer", kFunction,
     KIND_OF_LAYERS(attention), kUnlikeKinds},
    {"feed_forward_layers", "decoder_block", "the kind of each layer's experts, or of its MLP", kFunction,
     KIND_OF_LAYERS(has_experts() ? l.moe : l.mlp),
     [](const Architecture& a) { return a.mlps.size() > 1 || a.moes.size() > 1; }},
};

#undef FIELD

// Five fields of Architecture are of structs (layer_specs and lists of kinds), and one of AttentionKind
// (rope): their own fields are counted instead. A window has a second line, of its layers.
static_assert(std::size(kFields) == field_count<Architecture>() - 5 + field_count<LayerSpec>() +
                                        field_count<AttentionKind>() - 1 + field_count<RopeConfig>() +
                                        field_count<DeltaKind>() + field_count<MlpKind>() +
                                        field_count<MoeConfig>() + 1,
              "every field has one line above");

nlohmann::json json_of(const char* text) {
  return text;
}
nlohmann::json json_of(RouterScore score) {
  switch (score) {
    case RouterScore::none:
      return json_of("none");
    case RouterScore::softmax:
      return json_of("softmax");
    case RouterScore::sigmoid:
      return json_of("sigmoid");
    case RouterScore::sqrt_softplus:
      return json_of("sqrtsoftplus");
  }
  return {};
}
nlohmann::json json_of(GateClamp clamp) {
  return json_of(clamp == GateClamp::gpt_oss ? "gpt_oss" : clamp == GateClamp::before ? "before" : "after");
}
// The shortest number that reads back as `value`: 1e-06, not 9.999999974752427e-07.
nlohmann::json json_of(float value) {
  return std::stod(fmt::format("{}", value));
}
nlohmann::json value_at(const LayersWith& layers) {
  nlohmann::json numbers = nlohmann::json::array();
  for (std::int64_t i = 0; i < layers.model->depth(); ++i) {
    if (layers.has(*layers.model, layers.model->layer(i))) numbers.push_back(i);
  }
  return numbers;
}
nlohmann::json value_at(const KindOfLayers& layers) {
  nlohmann::json kinds = nlohmann::json::array();
  for (const LayerSpec& layer : layers.model->layer_specs) kinds.push_back(layers.number(layer));
  return kinds;
}
template <typename T>
nlohmann::json json_of(const T& value) {
  return value;
}
template <typename T>
nlohmann::json value_at(const T* field) {
  return json_of(*field);
}
template <typename T>
nlohmann::json value_at(const OfKinds<T>& places) {
  if (places.empty()) return {};
  if (std::ranges::all_of(places, [&](const T* place) { return *place == *places.front(); }))
    return json_of(*places.front());
  nlohmann::json values = nlohmann::json::array();
  for (const T* place : places) values.push_back(json_of(*place));
  return values;
}

}  // namespace

bool Architecture::has_indexer() const {
  return any_kind(*this, [](const AttentionKind& k) { return k.has_indexer(); });
}

std::int64_t Architecture::window() const {
  return std::ranges::max(attentions, {}, &AttentionKind::window).window;
}

std::int64_t Architecture::chunk() const {
  return std::ranges::max(attentions, {}, &AttentionKind::chunk).chunk;
}

std::vector<std::int64_t> Architecture::moe_layers() const {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < std::ssize(layer_specs); ++i) {
    if (layer(i).has_experts()) numbers.push_back(i);
  }
  return numbers;
}

bool Architecture::has_delta() const {
  return std::ranges::any_of(layer_specs, [](const LayerSpec& l) { return l.delta >= 0; });
}

std::span<const ArchitectureField> architecture_fields() {
  return kFields;
}

nlohmann::json value_of(const ArchitectureField& field, const Architecture& architecture) {
  if (!field.applies(architecture)) return {};
  Architecture copy = architecture;  // fields are reached by pointers that may write
  return std::visit([](const auto& at) { return value_at(at); }, field.of(copy));
}

nlohmann::json architecture_json(const Architecture& architecture) {
  nlohmann::json all = nlohmann::json::object();
  for (const ArchitectureField& field : kFields) {
    if (field.applies(architecture)) all[field.name] = value_of(field, architecture);
  }
  return all;
}

std::string architecture_hash(const Architecture& architecture) {
  nlohmann::json all = architecture_json(architecture);
  for (auto& value : all) {
    if (value.is_number_float()) value = std::stod(fmt::format("{:.12g}", value.get<double>()));
  }
  const std::string text = all.dump();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

const ArchitectureField* differing_field(const Architecture& a, const Architecture& b) {
  const auto* const field = std::find_if(std::begin(kFields), std::end(kFields),
                                         [&](const auto& f) { return value_of(f, a) != value_of(f, b); });
  return field == std::end(kFields) ? nullptr : field;
}

std::string differing_key(const Architecture& a, const Architecture& b) {
  const ArchitectureField* const field = differing_field(a, b);
  return field == nullptr ? "" : field->key;
}

}  // namespace switchyard
