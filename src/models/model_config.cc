#include "models/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "config/declaration.h"
#include "config/value.h"
#include "core/error.h"
#include "models/families/lora_keys.h"
#include "models/model_router.h"
#include "moe/combine_gradient.h"

namespace switchyard {
namespace {

// global_parameter_scale 2^n: every third doubling adds layers, as the reference spreads it.
struct Scales {
  std::int64_t emb, heads, mlp, layers;
};

Scales scales_of(std::int64_t scale) {
  if (scale < 1 || !std::has_single_bit(static_cast<std::uint64_t>(scale))) {
    fail_usage("[model] global_parameter_scale={}: expected a power of two", scale);
  }
  const auto log = static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(scale))) - 1;
  const std::int64_t base = log / 3, rest = log % 3;
  return {std::int64_t{1} << (base + (rest > 1)), std::int64_t{1} << (base + (rest > 0)),
          std::int64_t{1} << (base + (rest > 0)), std::int64_t{1} << base};
}

void read_rope(const Config& c, const ModelConfig& m, AttentionKind& k) {
  k.rope.type = c.get_string("rope_type");
  k.rope.theta = c.get_float("rope_max_timescale");
  k.rope.share = k.mla ? 1 : c.get_float("partial_rotary_factor");
  k.rope.factor = c.get_float("rope_factor");
  k.rope.beta_fast = c.get_float("beta_fast");
  k.rope.beta_slow = c.get_float("beta_slow");
  k.rope.original_positions = c.get_int("original_max_position_embeddings");
  k.rope.truncate = c.get_bool("rope_truncate");
  k.rope.interleaved = m.block->interleaved_rotation || (k.mla && c.get_bool("rope_interleave"));
  k.rope.attention_scaling = c.get_bool("rope_attention_scaling");
  if (k.rope.type == "llama3.1") {
    // The published constants, which the reference has built in; a Hugging Face config states its own.
    k.rope.low_frequency_factor = c.get_float("rope_low_freq_factor");
    k.rope.high_frequency_factor = c.get_float("rope_high_freq_factor");
    const auto stated = [&](const char* key, const auto& value) {  // by the user or a model file
      return c.is_set_by_user(key) || find_key(key)->default_value != value;
    };
    if (!stated("rope_factor", k.rope.factor)) k.rope.factor = 8;
    if (!stated("original_max_position_embeddings", k.rope.original_positions))
      k.rope.original_positions = 8192;
  }
}

// A number for each pair of dims that is rotated.
std::vector<double> rope_divisors(const Config& c, const AttentionKind& k) {
  std::vector<double> divisors = c.get_numbers("rope_frequency_divisors");
  for (const double divisor : divisors) {
    if (!(divisor > 0) || !std::isfinite(divisor))
      fail_usage("[model] rope_frequency_divisors: expected numbers above 0, got {}", divisor);
  }
  if (divisors.empty()) return divisors;
  if (std::ssize(divisors) != k.rope_dim / 2)
    fail_usage(
        "[model] rope_frequency_divisors: expected {} numbers, one for each pair of rotated dims, got {}",
        k.rope_dim / 2, divisors.size());
  if (k.rope.type != "default")
    fail_usage("[model] rope_frequency_divisors: expected rope_type=default, got {}", k.rope.type);
  return divisors;
}

// Rounded down, as transformers does; a share that was a quotient of whole numbers gives them back.
std::int64_t rotated_width(std::int64_t head_dim, double share) {
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * share + 1e-6);
}

void read_attention(const Config& c, const ModelConfig& m, AttentionKind& k) {
  k.mla = c.get_string("attention_type") == "mla";
  k.qk_norm = c.get_bool("use_qk_norm") && !m.block->unit_qk_norm;
  k.qk_unit_norm = c.get_bool("use_qk_norm") && m.block->unit_qk_norm;
  if (k.qk_unit_norm && c.get_string("qk_norm_over") == "width")
    fail_usage("[model] qk_norm_over=width: decoder_block={} norms each head", m.block->name);
  k.qk_norm_of_heads = k.qk_norm && c.get_string("qk_norm_over") == "width";
  const std::string gate = c.get_string("attention_gate");
  k.gate = gate == "block" ? m.block->gated_attention : gate != "none";
  k.gate_of_heads = gate == "head";
  k.gate_softplus = k.gate && c.get_string("attention_gate_curve") == "softplus";
  k.value_scale = static_cast<float>(c.get_float("attention_value_scale"));
  k.bias = c.get_bool("attention_bias");
  if (k.gate && k.bias) fail_usage("[model] attention_bias=true: attention with a gate has no biases");
  if (k.gate && k.qk_norm_of_heads)
    fail_usage("[model] qk_norm_over=width: attention with a gate norms each head by itself");
  k.sinks = c.get_bool("attention_sink");
  if (k.sinks && k.mla) fail_usage("[model] attention_sink=true: attention_type=mla has no sinks");
  k.out_bias = k.bias && c.get_bool("attention_output_bias");
  k.qkv_clip = static_cast<float>(c.get_float("clip_qkv"));
  if (k.qkv_clip > 0 && k.mla)
    fail_usage("[model] clip_qkv={}: attention_type=mla clamps nothing", c.get_float("clip_qkv"));
  if (k.mla) {
    if (k.gate) fail_usage("[model] attention_gate={}: attention_type=mla has no gate", gate);
    if (k.value_scale != 1)
      fail_usage("[model] attention_value_scale={}: attention_type=mla scales no values",
                 c.get_float("attention_value_scale"));
    if (c.get_int("value_head_dim") > 0)
      fail_usage("[model] value_head_dim={}: attention_type=mla states v_head_dim",
                 c.get_int("value_head_dim"));
    k.q_lora = c.get_int("q_lora_rank");
    k.kv_lora = c.get_int("kv_lora_rank");
    k.nope = c.get_int("qk_nope_head_dim");
    k.rope_dim = c.get_int("qk_rope_head_dim");
    k.v_dim = c.get_int("v_head_dim");
    if (!m.block->latent_attention)
      fail_usage("[model] attention_type=mla: expected decoder_block={}, got {}",
                 blocks_with(&DecoderBlock::latent_attention), m.block->name);
    if (k.qk_norm)
      fail_usage("[model] use_qk_norm=true: MLA has no norm on queries and keys; set use_qk_norm=false");
    if (c.get_float("partial_rotary_factor") != 1)
      fail_usage("[model] partial_rotary_factor={}: MLA states its rotated width as qk_rope_head_dim",
                 c.get_float("partial_rotary_factor"));
  } else {
    k.v_dim = c.get_int("value_head_dim") > 0 ? c.get_int("value_head_dim") : k.head_dim;
    k.rope_dim = rotated_width(k.head_dim, c.get_float("partial_rotary_factor"));
    if (m.block->latent_attention)
      fail_usage("[model] decoder_block={}: expected attention_type=mla, got {}", m.block->name,
                 c.get_string("attention_type"));
  }
  if (k.rope_dim % 2 != 0 || k.rope_dim == 0)
    fail_usage("[model] rotary dims {}: expected an even number from 2 on ({})", k.rope_dim,
               k.mla ? "qk_rope_head_dim" : "head_dim, partial_rotary_factor");
  read_rope(c, m, k);
  k.rope.divisors = rope_divisors(c, k);
  if (!k.mla) {
    k.scale = m.compat && !m.block->scaled_scores ? 1.0 : 1.0 / std::sqrt(static_cast<double>(k.head_dim));
    return;
  }
  k.scale = 1.0 / std::sqrt(static_cast<double>(k.nope + k.rope_dim));
  k.rope.beyond_original = c.get_int("max_position_embeddings") > k.rope.original_positions;
  if (k.rope.beyond_original) {
    const double mscale = 0.1 * c.get_float("mscale") * std::log(k.rope.factor) + 1.0;
    k.scale *= mscale * mscale;
  }
}

// Numbers of layers that a key lists.
std::vector<std::size_t> listed_layers(const Config& c, const char* key, std::int64_t layers) {
  std::vector<std::size_t> numbers;
  const std::vector<std::int64_t> listed = c.get_ints(key);
  for (const std::int64_t i : listed) {
    if (i < 0 || i >= layers)
      fail_usage("[model] {}=[{}]: expected numbers from 0 to {}", key, fmt::join(listed, ","), layers - 1);
    numbers.push_back(static_cast<std::size_t>(i));
  }
  return numbers;
}

// Sparse attention: what chooses keys, and how it learns.
void read_indexer(const Config& c, ModelConfig& m, AttentionKind& k) {
  if (!c.get_bool("use_indexer")) return;
  if (!k.mla || k.q_lora == 0)
    fail_usage("[model] use_indexer=true: expected attention_type=mla with q_lora_rank above 0");
  k.indexer_heads = c.get_int("indexer_n_heads");
  k.indexer_dim = c.get_int("indexer_head_dim");
  k.indexer_topk = c.get_int("indexer_topk");
  k.indexer_interleaved = c.get_bool("indexer_rope_interleave");
  for (const char* key : {"indexer_n_heads", "indexer_head_dim", "indexer_topk"}) {
    if (c.get_int(key) == 0) fail_usage("[model] {}=0: use_indexer=true needs one above 0", key);
  }
  if (k.indexer_dim < k.rope_dim)
    fail_usage("[model] indexer_head_dim={}: expected at least qk_rope_head_dim={}, the part that is rotated",
               k.indexer_dim, k.rope_dim);
  if (c.get_bool("indexer_use_approx_top_k"))
    fail_usage("[model] indexer_use_approx_top_k=true: keys are chosen exactly; set it to false");
  if (!c.get_bool("indexer_mask_exact_topk"))
    fail_usage(
        "[model] indexer_mask_exact_topk=false: of equal scores the lower keys are chosen, and no more "
        "than indexer_topk; set it to true");
  m.indexer_loss = c.get_float("indexer_loss_scaling_factor");
  m.indexer_sparse = c.get_bool("indexer_sparse_training");
  if (m.indexer_loss > 0 && k.indexer_topk >= c.get_int("max_target_length"))
    fail_usage(
        "[model] indexer_topk={}: expected less than max_target_length={} with "
        "indexer_loss_scaling_factor={}, as all keys are chosen else and nothing is learnt",
        k.indexer_topk, c.get_int("max_target_length"), m.indexer_loss);
  if (c.get_bool("quantize_kvcache"))
    fail_usage(
        "[model] quantize_kvcache=true: a cache of int8 has no chosen keys; set use_indexer=false or "
        "quantize_kvcache=false");
}

void check_interleaving(const Config& c, const ModelConfig& m) {
  const std::int64_t step = c.get_int("interleave_moe_layer_step");
  if (step > 1 && !m.block->interleaved_experts)
    fail_usage("[model] interleave_moe_layer_step={}: expected decoder_block={}, got {}", step,
               blocks_with(&DecoderBlock::interleaved_experts), m.block->name);
}

// Which layers go without rotation. They see all tokens where others see chunks, and their queries may grow.
std::vector<bool> unrotated_layers(const Config& c, const ModelConfig& m) {
  std::vector<bool> unrotated(m.layer_specs.size(), false);
  const std::int64_t interval = c.get_int("nope_layer_interval"), chunk = c.get_int("chunk_attn_window_size");
  const std::vector<std::size_t> listed = listed_layers(c, "unrotated_layers", m.layers);
  if (!m.block->unrotated_layers) {
    const auto refuse = [&](const char* key, const auto& value) {
      fail_usage("[model] {}={}: expected decoder_block={}, got {}", key, value,
                 blocks_with(&DecoderBlock::unrotated_layers), m.block->name);
    };
    if (interval > 0) refuse("nope_layer_interval", interval);
    if (!listed.empty()) refuse("unrotated_layers", fmt::format("[{}]", fmt::join(listed, ",")));
    if (chunk > 0) refuse("chunk_attn_window_size", chunk);
    if (c.get_bool("temperature_tuning") && !m.block->growing_queries)
      fail_usage("[model] temperature_tuning=true: expected decoder_block={} or {}, got {}",
                 blocks_with(&DecoderBlock::unrotated_layers), blocks_with(&DecoderBlock::growing_queries),
                 m.block->name);
    return unrotated;
  }
  if (c.get_int("sliding_window_size") > 0)
    fail_usage("[model] sliding_window_size={}: decoder_block={} has chunks, not windows",
               c.get_int("sliding_window_size"), m.block->name);
  if (interval > 0 && !listed.empty())
    fail_usage("[model] nope_layer_interval={} and unrotated_layers=[{}]: expected one of them", interval,
               fmt::join(listed, ","));
  for (std::int64_t i = 0; interval > 0 && i < m.layers; ++i)
    unrotated[static_cast<std::size_t>(i)] = (i + 1) % interval == 0;
  for (const std::size_t i : listed) unrotated[i] = true;
  return unrotated;
}

// The reference has latent experts with one width for what attention gives and the experts take.
void read_latent_width(const Config& c, ModelConfig& m) {
  const std::int64_t attention = c.get_int("attention_output_dim"),
                     experts = c.get_int("moe_expert_input_dim");
  m.moe_emb = m.emb;
  if (!m.latent_experts) {
    if (attention > 0)
      fail_usage("[model] attention_output_dim={}: expected decoder_block={}, got {}", attention,
                 blocks_with(&DecoderBlock::latent_experts), m.block->name);
    if (experts > 0)
      fail_usage("[model] moe_expert_input_dim={}: expected decoder_block={}, got {}", experts,
                 blocks_with(&DecoderBlock::latent_experts), m.block->name);
    return;
  }
  if (attention <= 0 || attention != experts) {
    fail_usage(
        "[model] attention_output_dim={} and moe_expert_input_dim={}: decoder_block={} needs both, and equal",
        attention, experts, m.block->name);
  }
  if (std::ssize(m.moe_layers()) < m.layers)
    fail_usage("[model] first_num_dense_layers={}, moe_layers=[{}]: decoder_block={} has no dense layers",
               c.get_int("first_num_dense_layers"), fmt::join(c.get_ints("moe_layers"), ","), m.block->name);
  m.moe_emb = experts;
}

// Checks the gates of the experts and the dense layers, which the block fixes.
void check_activations(const Config& c, const ModelConfig& m) {
  const std::vector<std::string> given = c.get_strings("mlp_activations"),
                                 wanted{m.block->clamped_gates ? "sigmoid" : "silu", "linear"};
  const std::int64_t cycle = c.get_int("inhomogeneous_layer_cycle_interval");
  const std::int64_t windows = m.block->alternating_windows ? 2 : 1,
                     rotations = std::max<std::int64_t>(1, c.get_int("nope_layer_interval")),
                     repeats = std::lcm(std::lcm(windows, rotations), c.get_int("interleave_moe_layer_step"));
  if (cycle != 1 && cycle != repeats && !m.block->delta_nets)
    fail_usage("[model] inhomogeneous_layer_cycle_interval={}: decoder_block={} repeats every {}", cycle,
               m.block->name, repeats == 1 ? "layer" : fmt::format("{} layers", repeats));
  if (given != wanted)
    fail_usage("[model] mlp_activations=[{}]: decoder_block={} has [{}]", fmt::join(given, ","),
               m.block->name, fmt::join(wanted, ","));
  if (m.block->clamped_gates) return;
  if (c.get_float("mlp_activations_limit") > 0)
    fail_usage("[model] mlp_activations_limit={}: expected decoder_block={}, got {}",
               c.get_float("mlp_activations_limit"), blocks_with(&DecoderBlock::clamped_gates),
               m.block->name);
  if (c.get_bool("mlp_bias") && m.moe().experts == 0)
    fail_usage("[model] mlp_bias=true: decoder_block={} has no experts, whose biases these are",
               m.block->name);
}

// Which layers have the window of sliding_window_size: those of windowed_layers, or else those of the block.
std::vector<bool> windowed_layers(const Config& c, const ModelConfig& m, bool latent) {
  std::vector<bool> windowed(m.layer_specs.size(), false);
  const std::int64_t window = c.get_int("sliding_window_size");
  const std::vector<std::size_t> listed = listed_layers(c, "windowed_layers", m.layers);
  if (window == 0) {
    if (m.block->alternating_windows || !listed.empty())
      fail_usage("[model] sliding_window_size=0: {} needs one above 0",
                 listed.empty() ? fmt::format("decoder_block={}", m.block->name) : "windowed_layers");
    return windowed;
  }
  if (latent) fail_usage("[model] sliding_window_size={}: attention_type=mla has no windows", window);
  for (const std::size_t i : listed) windowed[i] = true;
  for (std::size_t i = 0; listed.empty() && i < windowed.size(); ++i)
    windowed[i] = !m.block->alternating_windows || i % 2 == 0;
  return windowed;
}

// The kind that the keys describe, but for what its layers see.
AttentionKind attention_kind(const Config& c, const Scales& scale, ModelConfig& m) {
  AttentionKind kind;
  kind.heads = c.get_int("base_num_query_heads") * scale.heads;
  kind.kv_heads = c.get_int("base_num_kv_heads") * scale.heads;
  kind.head_dim = c.get_int("head_dim");
  if (kind.heads % kind.kv_heads != 0)
    fail_usage("[model] base_num_query_heads={} must be a multiple of base_num_kv_heads={}",
               c.get_int("base_num_query_heads"), c.get_int("base_num_kv_heads"));
  const double latent_epsilon = c.get_float("latent_norm_epsilon");
  kind.latent_norm_epsilon = latent_epsilon > 0 ? static_cast<float>(latent_epsilon) : m.norm_epsilon;
  read_attention(c, m, kind);
  read_indexer(c, m, kind);
  return kind;
}

// temperature_tuning: queries grow with the position.
void read_growth(const Config& c, const ModelConfig& m, AttentionKind& kind) {
  if (!c.get_bool("temperature_tuning") || (kind.rotated && !m.block->growing_queries)) return;
  if (kind.query_dim() % 2 != 0)
    fail_usage("[model] temperature_tuning=true: expected a head of an even width, got {}", kind.query_dim());
  kind.query_growth = c.get_float("temperature_tuning_scale");
  kind.query_growth_positions = c.get_int("temperature_tuning_floor_scale");
  kind.query_growth_offset = c.get_int("temperature_tuning_offset");
}

// The keys that a kind of attention_kinds may set.
constexpr std::string_view kKeysOfKinds[] = {"base_num_query_heads",
                                             "base_num_kv_heads",
                                             "head_dim",
                                             "value_head_dim",
                                             "sliding_window_size",
                                             "use_qk_norm",
                                             "attention_sink",
                                             "attention_gate",
                                             "attention_value_scale",
                                             "attention_gate_curve",
                                             "rope_type",
                                             "rope_factor",
                                             "beta_fast",
                                             "beta_slow",
                                             "rope_max_timescale",
                                             "rope_truncate",
                                             "use_indexer",
                                             "clip_qkv",
                                             "partial_rotary_factor",
                                             "rope_low_freq_factor",
                                             "rope_high_freq_factor",
                                             "rope_attention_scaling",
                                             "rope_frequency_divisors",
                                             "original_max_position_embeddings"};

// attention_kinds and layer_kinds: kinds by name, and the kind of each layer.
void place_named_kinds(const Config& c, const Scales& scale, ModelConfig& m) {
  const nlohmann::json kinds = c.resolved().at("attention_kinds");
  const std::vector<std::string> layers = c.get_strings("layer_kinds");
  if (!kinds.is_object() || layers.empty())
    fail_usage(
        "[model] attention_kinds={}, layer_kinds=[{}]: expected both, kinds by name and a name a layer",
        value_text(kinds), fmt::join(layers, ","));
  if (std::ssize(layers) != m.layers)
    fail_usage("[model] layer_kinds: expected a name for each of {} layers, got {}", m.layers, layers.size());
  for (const char* key : {"windowed_layers", "unrotated_layers"}) {
    if (!c.get_ints(key).empty()) fail_usage("[model] {} and layer_kinds: expected one of them", key);
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (!kinds.contains(layers[i]) || !kinds[layers[i]].is_object())
      fail_usage("[model] layer_kinds: layer {} is of kind {}, which attention_kinds lacks", i, layers[i]);
    Config own = c;
    for (const auto& [key, value] : kinds[layers[i]].items()) {
      if (std::ranges::find(kKeysOfKinds, key) == std::end(kKeysOfKinds))
        fail_usage("[model] attention_kinds: {}.{}: expected one of {}", layers[i], key,
                   fmt::join(kKeysOfKinds, ", "));
      own.set(key, value, "attention_kinds");
    }
    AttentionKind kind = attention_kind(own, scale, m);
    kind.window = own.get_int("sliding_window_size");
    if (kind.mla && kind.window > 0)
      fail_usage("[model] sliding_window_size={}: attention_type=mla has no windows", kind.window);
    read_growth(own, m, kind);
    m.layer_specs[i].attention = number_of(m.attentions, kind);
  }
}

// shared_choice_layers: layers that take the choice of the last layer before that has an indexer.
void share_choices(const Config& c, ModelConfig& m) {
  const std::vector<std::size_t> listed = listed_layers(c, "shared_choice_layers", m.layers);
  if (listed.empty()) return;
  if (!m.has_indexer())
    fail_usage("[model] shared_choice_layers=[{}]: expected use_indexer=true",
               fmt::join(c.get_ints("shared_choice_layers"), ","));
  if (std::ranges::count(listed, 0u) > 0)
    fail_usage("[model] shared_choice_layers: layer 0 has no layer before whose choice it could take");
  for (const std::size_t i : listed) {
    AttentionKind kind = m.attention_of(m.layer_specs[i]);
    kind.indexer_heads = kind.indexer_dim = 0;
    m.layer_specs[i].attention = number_of(m.attentions, kind);
  }
  int last = -1;
  for (std::size_t i = 0; i < m.layer_specs.size(); ++i) {
    LayerSpec& layer = m.layer_specs[i];
    if (m.attention_of(layer).has_indexer())
      last = static_cast<int>(i);
    else if (std::ranges::count(listed, i) > 0)
      layer.choice_of = last;
  }
}

// The kinds of attention, and which layers have which.
void place_attention(const Config& c, const Scales& scale, ModelConfig& m) {
  if (!c.resolved().at("attention_kinds").empty() || !c.get_strings("layer_kinds").empty())
    return place_named_kinds(c, scale, m);
  const AttentionKind base = attention_kind(c, scale, m);
  check_interleaving(c, m);
  const std::vector<bool> windowed = windowed_layers(c, m, base.mla), unrotated = unrotated_layers(c, m);
  for (std::size_t i = 0; i < m.layer_specs.size(); ++i) {
    AttentionKind kind = base;
    kind.window = windowed[i] ? c.get_int("sliding_window_size") : 0;
    kind.rotated = !unrotated[i];
    if (kind.rotated) kind.chunk = c.get_int("chunk_attn_window_size");
    read_growth(c, m, kind);
    m.layer_specs[i].attention = number_of(m.attentions, kind);
  }
  share_choices(c, m);
}

// Which layers have a gated delta net, and of what sizes.
void read_delta(const Config& c, const Scales& scale, ModelConfig& m) {
  const std::vector<std::size_t> listed = listed_layers(c, "delta_layers", m.layers);
  if (!m.block->delta_nets) {
    if (!listed.empty())
      fail_usage("[model] delta_layers=[{}]: expected decoder_block={}, got {}",
                 fmt::join(c.get_ints("delta_layers"), ","), blocks_with(&DecoderBlock::delta_nets),
                 m.block->name);
    return;
  }
  const std::int64_t cycle = c.get_int("inhomogeneous_layer_cycle_interval");
  if (!listed.empty() && cycle != 1)
    fail_usage("[model] delta_layers=[{}] and inhomogeneous_layer_cycle_interval={}: expected one of them",
               fmt::join(c.get_ints("delta_layers"), ","), cycle);
  const auto put = [&](std::size_t layer) {
    m.layer_specs[layer].attention = -1;
    m.layer_specs[layer].delta = 0;
  };
  for (const std::size_t i : listed) put(i);
  for (std::int64_t i = 0; listed.empty() && i < m.layers; ++i) {
    if ((i + 1) % cycle != 0) put(static_cast<std::size_t>(i));
  }
  DeltaKind kind;
  kind.key_heads = c.get_int("gdn_num_key_heads") * scale.heads;
  kind.value_heads = c.get_int("gdn_num_value_heads") * scale.heads;
  kind.key_dim = c.get_int("gdn_key_head_dim");
  kind.value_dim = c.get_int("gdn_value_head_dim");
  kind.taps = c.get_int("gdn_conv_kernel_dim");
  kind.unit_vectors = c.get_bool("use_qk_norm_in_gdn");
  m.deltas.push_back(kind);
  m.delta_chunk = c.get_int("gdn_chunk_size");
  if (m.has_delta() && kind.value_heads % kind.key_heads != 0)
    fail_usage("[model] gdn_num_value_heads={}: expected a multiple of gdn_num_key_heads={}",
               c.get_int("gdn_num_value_heads"), c.get_int("gdn_num_key_heads"));
  if (m.window() > 0)
    fail_usage("[model] sliding_window_size={}: decoder_block={} has no windows", m.window(), m.block->name);
}

// Which layers have experts: those of moe_layers, or all from
// first_num_dense_layers on, or each interleave_moe_layer_step-th.
void place_experts(const Config& c, ModelConfig& m) {
  const std::vector<std::size_t> listed = listed_layers(c, "moe_layers", m.layers);
  const std::int64_t dense = c.get_int("first_num_dense_layers");
  if (!listed.empty() && dense > 0)
    fail_usage("[model] moe_layers=[{}] and first_num_dense_layers={}: expected one of them",
               fmt::join(listed, ","), dense);
  const std::int64_t step = c.get_int("interleave_moe_layer_step");
  if (step > 1 && (!listed.empty() || dense > 0 || step > m.layers))
    fail_usage(
        "[model] interleave_moe_layer_step={}: expected at most {} layers, and neither moe_layers nor "
        "first_num_dense_layers",
        step, m.layers);
  std::vector<bool> sparse(m.layer_specs.size(), false);
  for (std::int64_t i = dense; listed.empty() && i < m.layers; ++i)
    sparse[static_cast<std::size_t>(i)] = (i + 1) % step == 0;
  for (const std::size_t i : listed) sparse[i] = true;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (sparse[i]) m.layer_specs[i].mlp = -1, m.layer_specs[i].moe = 0;
  }
}

// A limit for each layer; 0: none.
std::vector<float> limits_of_layers(const Config& c, const char* key, const ModelConfig& m) {
  const std::vector<double> list = c.get_numbers(key);
  std::vector<float> limits(m.layer_specs.size(), 0.0f);
  if (list.empty()) return limits;
  if (std::ssize(list) != m.layers)
    fail_usage("[model] {}=[{}]: expected a number for each of {} layers", key, fmt::join(list, ","),
               m.layers);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    if (list[i] < 0) fail_usage("[model] {}: expected numbers of 0 (none) or more, got {}", key, list[i]);
    limits[i] = static_cast<float>(list[i]);
  }
  return limits;
}

// Limits of gates by layer: layers with others are of kinds of their own.
void read_gate_limits(const Config& c, ModelConfig& m) {
  const std::vector<float> routed = limits_of_layers(c, "expert_gate_limits", m),
                           others = limits_of_layers(c, "shared_gate_limits", m);
  const auto none = [](const std::vector<float>& limits) {
    return std::ranges::all_of(limits, [](float limit) { return limit == 0; });
  };
  if (none(routed) && none(others)) return;
  if (m.block->clamped_gates)
    fail_usage("[model] expert_gate_limits, shared_gate_limits: decoder_block={} has mlp_activations_limit",
               m.block->name);
  const MlpKind mlp = m.mlp();
  MoeConfig moe = m.moe();
  moe.gate_clamp = c.get_string("expert_gate_clamp") == "after" ? GateClamp::after : GateClamp::before;
  m.mlps.clear();
  m.moes.clear();
  for (std::size_t i = 0; i < routed.size(); ++i) {
    LayerSpec& layer = m.layer_specs[i];
    if (layer.has_experts()) {
      moe.gate_limit = routed[i];
      moe.shared_limit = m.shared_experts > 0 ? others[i] : 0;
      layer.moe = number_of(m.moes, moe);
    } else {
      layer.mlp = number_of(m.mlps, {mlp.width, others[i]});
    }
  }
  if (m.mlps.empty()) m.mlps.push_back(mlp);
  if (m.moes.empty()) m.moes.push_back(moe);
}

void read_moe(const Config& c, const Scales& scale, ModelConfig& m) {
  const std::int64_t experts = c.get_int("num_experts");
  const bool block = m.block->experts;
  if (experts <= 1 && !(block && experts == 1 && c.is_set_by_user("num_experts"))) {
    if (block)
      fail_usage("[model] decoder_block={}: expected num_experts of 2 or more, got {}", m.block->name,
                 experts);
    return;
  }
  MoeConfig& moe = m.moes.front();
  moe.experts = experts;
  moe.slots = c.get_int("num_experts_per_tok");
  m.shared_experts = c.get_int("shared_experts");
  if (m.shared_experts > 0 && !m.block->shared_experts)
    fail_usage("[model] shared_experts={}: decoder_block={} has no shared experts", m.shared_experts,
               m.block->name);
  m.shared_gate = m.shared_experts > 0 && m.block->gated_shared_experts;
  const std::int64_t shared = c.get_int("shared_expert_mlp_dim");
  if (shared > 0 && m.shared_experts == 0)
    fail_usage("[model] shared_expert_mlp_dim={}: shared_experts=0", shared);
  m.shared_mlp = shared > 0 ? shared * scale.mlp : m.shared_experts * m.moe_mlp;
  place_experts(c, m);
  read_router(c, m);
  read_experts(c, m);
  moe.random_routing = c.get_bool("use_random_routing");
  moe.random_seed = m.init_seed;
  read_gate_limits(c, m);
}

// By default evaluations drop nothing. With further passes training drops nothing either, and its cap on
// memory holds for both. The reference takes the cap of training unless evaluation has rules
// of its own.
double eval_buffer_factor(const Config& c, const MoeExecution& run) {
  const double own = c.get_float("eval_ragged_buffer_factor");
  const bool own_rules = !c.get_string("custom_mesh_and_rule_for_eval").empty();
  if (own > 0 || (c.follows_maxtext() && own_rules)) return own;
  return run.further_passes || c.follows_maxtext() ? run.ragged_buffer_factor : -1;
}

// A dense model keeps the defaults.
void read_moe_execution(const Config& c, ModelConfig& m) {
  if (m.moe().experts == 0) return;
  MoeExecution& run = m.moe_execution;
  run.float32_gate_logits = c.get_bool("float32_gate_logits");
  run.weights_at_combine = m.compat;
  run.combine_gradient_bound = combine_gradient_bound(c.get_string("moe_quantize_combine_bwd_method"));
  read_balance(c, m);
  run.sparse = c.get_bool("sparse_matmul");
  run.ring = c.get_bool("use_ring_of_experts");
  run.ragged_buffer_factor = c.get_float("ragged_buffer_factor");
  run.further_passes = !c.is_none("moe_dropless_fallback");
  run.eval_ragged_buffer_factor = eval_buffer_factor(c, run);
  run.drop_policy = c.get_string("ragged_drop_policy") == "prefix" ? DropPolicy::prefix : DropPolicy::fair;
  run.token_chunks = c.get_int("num_moe_token_chunks");
  run.emb_chunks = std::max<std::int64_t>(1, c.get_int("num_moe_emb_chunks"));
  run.capacity_factor = c.get_float("capacity_factor");
  run.dispatch_without_expert_axes = c.get_bool("moe_dispatch_no_expert_sharding");
}

// Checkpoint names that stay under remat_policy, on the device or moved away.
void read_remat(const Config& c, ModelConfig& m) {
  static const std::vector<std::string> attention_in{"query_proj",    "key_proj",   "value_proj", "qkv_proj",
                                                     "query_wa_proj", "kv_wa_proj", "mla_q",      "mla_kv"};
  static const std::vector<std::string> mlp_in{"mlpwi", "mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1"};
  static const std::vector<std::string> mlp_out{"mlpwo", "moe_mlpwo"}, out{"out_proj"}, context{"context"};
  const std::string policy = c.get_string("remat_policy");
  auto keep = [&](std::initializer_list<const std::vector<std::string>*> groups) {
    for (const auto* group : groups) m.remat_keeps.insert(group->begin(), group->end());
  };
  if (policy == "none" || policy.empty())
    m.remat = false;
  else if (policy == "full")
    keep({});
  else if (policy == "minimal" || policy == "minimal_offloaded")
    keep({&attention_in, &mlp_in, &mlp_out, &out});
  else if (policy == "minimal_with_context" || policy == "minimal_flash")
    keep({&attention_in, &mlp_in, &mlp_out, &out, &context});
  else if (policy == "minimal_with_context_and_quantization" || policy == "minimal_with_quantization")
    keep({&attention_in, &mlp_in, &mlp_out, &out, &context});
  else if (policy == "save_dot_with_context_except_mlp")
    keep({&attention_in, &out, &context});
  else if (policy == "save_dot_except_mlpwi")
    keep({&attention_in, &out, &mlp_out});
  else if (policy == "save_dot_except_mlp")
    keep({&attention_in, &out});
  else if (policy == "save_qkv_proj" || policy == "qkv_proj_offloaded")
    keep({&attention_in});
  else if (policy == "save_out_proj")
    keep({&out});
  else if (policy == "custom") {
    for (const char* name : {"context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1",
                             "moe_mlpwo", "moe_x_sorted", "query_proj", "key_proj", "value_proj", "qkv_proj",
                             "out_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "attention_out"}) {
      const std::string& choice = c.get_string(name);
      if (choice != "remat") m.remat_keeps.insert(name);
      if (choice == "offload") m.remat_offloads.insert(name);
    }
    if (c.get_string("decoder_layer_input") == "offload") m.remat_offloads.insert("decoder_layer_input");
  } else {
    fail_usage("[model] remat_policy={}: expected full, minimal, none, custom or one of the save_… policies",
               policy);
  }
  m.moe_execution.keep_rows = m.remat_keeps.contains("moe_x_sorted");
  if (policy == "minimal_offloaded" || policy == "qkv_proj_offloaded") m.remat_offloads = m.remat_keeps;
}

// mtp_num_layers: each is like the last layer with attention, and has an indexer of its own where layers do.
void add_predictions(const Config& c, ModelConfig& m) {
  m.predictions = c.get_int("mtp_num_layers");
  m.prediction_loss = c.get_float("mtp_loss_scaling_factor");
  if (m.predictions == 0) return;
  if (m.latent_experts)
    fail_usage("[model] mtp_num_layers={}: decoder_block={} has no prediction layers", m.predictions,
               m.block->name);
  m.prediction_norms = c.get_bool("mtp_own_norm");
  m.prediction_of_normed = c.get_bool("mtp_reads_final_norm");
  const auto last = std::ranges::find_if(m.layer_specs.rbegin(), m.layer_specs.rend(),
                                         [](const LayerSpec& layer) { return layer.attention >= 0; });
  LayerSpec spec = last == m.layer_specs.rend() ? m.layer_specs.back() : *last;
  if (spec.choice_of >= 0) spec = {m.layer(spec.choice_of).attention, spec.delta, spec.mlp, spec.moe};
  m.layer_specs.insert(m.layer_specs.end(), static_cast<std::size_t>(m.predictions), spec);
}

}  // namespace

std::string model_title(const Config& config) {
  if (const std::string& name = config.get_string("model_name"); name != "default") return name;
  return config.get_string(config.is_none("load_parameters_path") ? "decoder_block" : "load_parameters_path");
}

std::int64_t number_of_layers(const Config& c) {
  return c.get_int("base_num_decoder_layers") * scales_of(c.get_int("global_parameter_scale")).layers;
}

ModelConfig for_evaluation(ModelConfig model) {
  model.moe_execution.ragged_buffer_factor = model.moe_execution.eval_ragged_buffer_factor;
  model.moe_execution.tape = nullptr;
  return model;
}

ModelConfig model_config(const Config& c) {
  ModelConfig m;
  m.name = model_title(c);
  m.block = &decoder_block(c.get_string("decoder_block"));
  m.latent_experts = m.block->latent_experts;
  m.compat = c.follows_maxtext();
  m.compat_2026_08 = c.get_string("compat") == kCompat202608;
  m.init_seed = static_cast<std::uint32_t>(c.get_int("init_weights_seed"));
  const Scales scale = scales_of(c.get_int("global_parameter_scale"));
  m.layers = number_of_layers(c);
  m.layer_specs.resize(static_cast<std::size_t>(m.layers));
  m.emb = c.get_int("base_emb_dim") * scale.emb;
  m.mlps.front().width = c.get_int("base_mlp_dim") * scale.mlp;
  m.moe_mlp =
      (c.get_int("base_moe_mlp_dim") > 0 ? c.get_int("base_moe_mlp_dim") : c.get_int("base_mlp_dim")) *
      scale.mlp;
  m.vocab = c.get_int("vocab_size");
  m.balanced_context = c.get_bool("context_parallel_load_balance");
  m.norm_epsilon = static_cast<float>(c.get_float("normalization_layer_epsilon"));
  place_attention(c, scale, m);
  read_delta(c, scale, m);
  read_moe(c, scale, m);
  check_activations(c, m);
  read_latent_width(c, m);
  read_moe_execution(c, m);
  m.post_mlp_norm = c.get_bool("use_post_ffw_norm");
  if (m.post_mlp_norm && !m.block->post_mlp_norm)
    fail_usage("[model] use_post_ffw_norm=true: expected decoder_block={}, got {}",
               blocks_with(&DecoderBlock::post_mlp_norm), m.block->name);
  m.norm_plus_one = m.block->norms_plus_one;
  m.tied = c.get_bool("logits_via_embedding");
  m.normalize_tied_logits = m.tied && c.get_bool("normalize_embedding_logits");
  m.logit_soft_cap =
      c.is_none("final_logits_soft_cap") ? 0.0f : static_cast<float>(c.get_float("final_logits_soft_cap"));
  m.z_loss = c.get_float("z_loss_multiplier");
  m.dtype = parse_float_dtype(c.get_string("dtype"), "dtype");
  m.weight_dtype = parse_float_dtype(c.get_string("weight_dtype"), "weight_dtype");
  m.int8_cache = c.get_bool("quantize_kvcache");
  read_remat(c, m);
  m.trainable = c.get_strings("trainable_parameters_mask");
  m.weight_places = c.get_strings("weight_places");
  if (c.get_bool("parameter_memory_host_offload")) m.weight_places.emplace_back(".*=host");
  add_predictions(c, m);
  check_adapter_keys(c);
  // That of a folder is read where its base is known (engine/model.h).
  if (trains_adapter(c) && adapter_to_go_on_from(c).empty())
    m.adapter = std::make_shared<const Adapter>(adapter_of_keys(c, m, find_family_to_write(c, m)));
  return m;
}

}  // namespace switchyard
