// Grouped-query attention.
#include "models/blocks/attention.h"
#include "models/blocks/mixer.h"
#include "ops/basic.h"
#include "ops/clamp.h"
#include "ops/kv_heads.h"
#include "ops/norm.h"
#include "ops/output_gate.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Keys and values split over heads only when the queries are.
Sharding like_query(const Context& c, const AttentionKind& k, const Shape& shape, const Sharding& query) {
  Sharding s = heads_sharding(c, k, shape, true);
  if (s.dims[2] != query.dims[2]) s.dims[2].clear();
  return s;
}

Array grouped_query_attention(const LayerCall& call, const Array& x) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  const AttentionKind& kind = call.attention();
  const Array h = attention_input(call, x);
  const std::int64_t batch = x.shape()[0], length = x.shape()[1];
  const Sharding q_layout = heads_sharding(c, kind, {batch, length, kind.heads, kind.head_dim}, false);
  Sharding kv_layout = like_query(c, kind, {batch, length, kind.kv_heads, kind.head_dim}, q_layout);
  // The queries may be split further than there are key heads: then each part projects
  // to the key head that it reads.
  const std::int64_t parts = c.mesh->product(q_layout.dims[2]);
  const bool one_each = kv_layout.dims[2].empty() && parts > kind.kv_heads && parts % kind.kv_heads == 0;
  if (one_each) kv_layout.dims[2] = q_layout.dims[2];
  const auto of_kv_heads = [&](const Array& w) {
    return one_each ? spread_heads(c, w, q_layout.dims[2]) : w;
  };
  const auto layer = [&](const char* name) { return linear(call, name, kind.bias); };
  const auto kv_layer = [&](const char* name) {
    Linear l = layer(name);
    l.weight = of_kv_heads(l.weight);
    if (l.bias.defined()) l.bias = of_kv_heads(l.bias);
    if (l.adapter) l.adapter->b = of_kv_heads(l.adapter->b);
    return l;
  };
  std::vector<Linear> layers{layer("attention.query"), kv_layer("attention.key"),
                             kv_layer("attention.value")};
  std::vector<const Sharding*> layouts{&q_layout, &kv_layout, &kv_layout};
  if (kind.gate) {
    layers.push_back(layer("attention.gate"));
    layouts.push_back(&q_layout);
  }
  std::vector<Array> projected = project_each(c, kToHeads, h, layers, layouts);
  for (std::size_t i = 0; i < layers.size(); ++i) projected[i] = layers[i].with_bias(c, projected[i]);
  Array q = checkpoint_name(projected[0], "query_proj"), k = checkpoint_name(projected[1], "key_proj"),
        v = checkpoint_name(projected[2], "value_proj");
  if (kind.value_scale != 1) v = scale(c, v, kind.value_scale);
  const auto through_gate = [&](const Array& attended) {
    if (!kind.gate) return attended;
    return output_gate(c, attended, reshard(c, projected[3], attended.sharding()),
                       kind.gate_softplus ? GateCurve::softplus : GateCurve::sigmoid);
  };
  if (kind.qk_norm) {
    const Array q_norm = call.parameter("attention.q_norm"), k_norm = call.parameter("attention.k_norm");
    // Repeated key heads do not change the mean over heads: every head is repeated equally often.
    q = kind.qk_norm_of_heads ? rms_norm_of_heads(c, q, q_norm, m.norm_epsilon)
                              : rms_norm(c, q, q_norm, m.norm_epsilon, m.norm_offset());
    k = kind.qk_norm_of_heads ? rms_norm_of_heads(c, k, of_kv_heads(k_norm), m.norm_epsilon)
                              : rms_norm(c, k, k_norm, m.norm_epsilon, m.norm_offset());
  }
  if (kind.qkv_clip > 0) {
    q = clamp(c, q, kind.qkv_clip);
    k = clamp(c, k, kind.qkv_clip);
    v = clamp(c, v, kind.qkv_clip);
  }
  if (kind.rotated) {
    q = rope(c, q, call.rope, 0, kind.rope.interleaved);
    k = rope(c, k, call.rope, 0, kind.rope.interleaved);
    if (kind.qk_unit_norm) {
      q = rms_norm_without_scale(c, q, m.norm_epsilon);
      k = rms_norm_without_scale(c, k, m.norm_epsilon);
    }
  }
  if (kind.scales_queries()) q = rope(c, q, call.growth, 0, kind.rope.interleaved);
  const Array head_sinks = kind.sinks ? cast(c, call.parameter("attention.sinks"), DType::f32) : Array();
  const Array* const sinks = kind.sinks ? &head_sinks : nullptr;
  if (call.cache != nullptr) {
    cache_append(c, *call.cache, q, std::span(&k, 1), std::span(&v, 1), *call.places);
    return project_out(call,
                       through_gate(attend(c, *call.cache, q, *call.places, attention_options(call), sinks)));
  }
  const Array attended = checkpoint_name(
      attention(c, q, k, v, call.segments, attention_options(call), sinks, call.scores), "context");
  return project_out(call, through_gate(attended));
}

void grouped_specs(const ModelConfig& m, const LayerSpec& layer, const std::string& prefix, SpecList& list) {
  const AttentionKind& k = m.attention_of(layer);
  const std::string p = prefix + "attention.";
  list.projection(p + "query", {m.emb, k.heads, k.head_dim}, {"embed_attn", "q_heads", "kv"}, m.emb,
                  held_factor(m, p + "query"));
  if (k.gate_of_heads)
    list.projection(p + "gate", {m.emb, k.heads, 1}, {"embed_attn", "q_heads", ""}, m.emb);
  else if (k.gate)
    list.projection(p + "gate", {m.emb, k.heads, k.v_dim}, {"embed_attn", "q_heads", "kv"}, m.emb);
  list.projection(p + "key", {m.emb, k.kv_heads, k.head_dim}, {"embed_attn", "kv_heads", "kv_head_dim"},
                  m.emb);
  list.projection(p + "value", {m.emb, k.kv_heads, k.v_dim}, {"embed_attn", "kv_heads", "kv_head_dim"},
                  m.emb);
  if (k.bias) {
    list.bias(p + "query_bias", {k.heads, k.head_dim}, {"q_heads", "kv"});
    list.bias(p + "key_bias", {k.kv_heads, k.head_dim}, {"kv_heads", "kv_head_dim"});
    list.bias(p + "value_bias", {k.kv_heads, k.v_dim}, {"kv_heads", "kv_head_dim"});
  }
  if (k.sinks) list.bias(p + "sinks", {k.heads}, {"q_heads"});
  if (k.qk_norm_of_heads) {
    list.norm_of_heads(p + "q_norm", {k.heads, k.head_dim});
    list.norm_of_heads(p + "k_norm", {k.kv_heads, k.head_dim});
  } else if (k.qk_norm) {
    list.norm(p + "q_norm", k.head_dim, "");
    list.norm(p + "k_norm", k.head_dim, "");
  }
  out_specs(m, k, p, list);
}

double grouped_products(const ModelConfig& m, const LayerSpec& layer, std::int64_t sequence) {
  const AttentionKind& k = m.attention_of(layer);
  const std::int64_t of_gate = k.gate_of_heads ? 1 : k.v_dim, gate = k.gate ? of_gate : 0,
                     outputs = k.heads * (k.head_dim + gate) + k.kv_heads * (k.head_dim + k.v_dim);
  return static_cast<double>(m.emb) * static_cast<double>(outputs) +
         attended_products(m, k, k.head_dim, mean_keys(sequence));
}

}  // namespace

const Mixer kGroupedAttention{
    .add_specs = grouped_specs, .forward = grouped_query_attention, .products = grouped_products};

double held_factor(const ModelConfig& m, std::string_view parameter) {
  const bool query = parameter.ends_with("attention.query") || parameter.ends_with("attention.query_bias");
  if (!query || !m.compat) return 1;
  const AttentionKind& k = m.attention_of(m.layer(layer_of(std::string(parameter))));
  return !k.mla && k.scale == 1 ? 1 / std::sqrt(static_cast<double>(k.head_dim)) : 1;
}

}  // namespace switchyard
