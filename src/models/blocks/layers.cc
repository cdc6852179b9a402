#include "models/blocks/layers.h"

#include <optional>
#include <tuple>

#include "models/blocks/indexer.h"
#include "moe/expert_biases.h"
#include "ops/basic.h"
#include "ops/clamp.h"
#include "ops/einsum.h"
#include "ops/kv_heads.h"
#include "ops/norm.h"
#include "ops/output_gate.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

constexpr std::string_view kToHeads = "BSM,MND->BSND";

Sharding heads_sharding(const Context& c, const AttentionKind& k, const Shape& shape, bool kv) {
  const std::string_view heads = kv ? "activation_kv_heads" : "activation_heads";
  Sharding s = c.rules->sharding({"activation_batch_attn", "activation_length_attn", heads, ""}, shape);
  // A split of query heads must keep the groups of key heads whole, or divide a group evenly.
  const std::int64_t here = k.heads / c.mesh->product(s.dims[2]), group = k.heads / k.kv_heads;
  if (!kv && here % group != 0 && group % here != 0) s.dims[2].clear();
  if (kv && k.mla) s.dims[2] = c.rules->sharding({"", "", "activation_heads", ""}, shape).dims[2];
  return s;
}

AttentionOptions attention_options(const LayerCall& call) {
  const AttentionKind& k = call.attention();
  KeyWindow seen = k.seen();
  if (call.chunks_in_segments)
    seen = {.window = seen.chunk, .chunk = 0};  // no key of a chunk is further back
  return {.scale = static_cast<float>(k.scale),
          .balanced = call.model.balanced_context,
          .window = seen.window,
          .chunk = seen.chunk};
}

// x with M whole, its tokens laid out as those of the queries.
Array attention_input(const LayerCall& call, const Array& x) {
  Sharding tokens = attention_tokens(call.context, call.model, x.shape()[0], x.shape()[1]);
  tokens.dims.emplace_back();
  return reshard(call.context, x, tokens);
}

Array project_out(const LayerCall& call, const Array& attended) {
  const Linear out = linear(call, "attention.out", call.attention().out_bias);
  return checkpoint_name(project_heads(call, attended, out), "out_proj");
}

// Keys and values split over heads only when the queries are.
Sharding like_query(const Context& c, const AttentionKind& k, const Shape& shape, const Sharding& query) {
  Sharding s = heads_sharding(c, k, shape, true);
  if (s.dims[2] != query.dims[2]) s.dims[2].clear();
  return s;
}

// Attention over remembered latent vectors: q·(W_k c) = (W_kᵀ q)·c, and the sum of weighted W_v c is W_v of
// the sum of weighted c.
Array attend_latent(const LayerCall& call, const Array& q, const Sharding& q_layout,
                    const IndexVectors* index) {
  Context& c = call.context;
  const AttentionKind& kind = call.attention();
  if (!call.cache->key_up.defined()) {
    std::tie(call.cache->key_up, call.cache->value_up) =
        split_up_projection(c, linear(call, "attention.wkv_b").merged(c), kind.nope);
  }
  const auto [plain, turned] = split_last(c, q, kind.nope);
  const Array latent_q =
      join_last(c, einsum(c, "BSND,NRD->BSNR", plain, call.cache->key_up, &q_layout), turned);
  const CacheChoice choice{index, kind.indexer_topk, &call.flow->in_cache};
  const bool chooses = index != nullptr || call.layer.choice_of >= 0;
  const Array sums = attend(c, *call.cache, latent_q, *call.places, attention_options(call), nullptr,
                            chooses ? &choice : nullptr);
  return einsum(c, "BSNR,NRD->BSND", sums, call.cache->value_up, &q_layout);
}

}  // namespace

Array weight(const LayerCall& call, const std::string& name) {
  return cast(call.context, call.parameter(name), call.model.dtype);
}

Linear linear(const LayerCall& call, const std::string& name, bool biased) {
  return {.weight = weight(call, name),
          .bias = biased ? call.parameter(name + "_bias") : Array(),
          .adapter = std::nullopt};
}

Sharding block_sharding(const AxisRules& rules, const Shape& shape) {
  return rules.sharding({"activation_batch", "activation_norm_length", "activation_embed"}, shape);
}

Array whole_embedding(Context& context, const Array& x) {
  return reshard(context, x, Sharding{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}});
}

Sharding attention_tokens(const Context& context, const ModelConfig& model, std::int64_t batch,
                          std::int64_t length) {
  const AttentionKind& kind = model.attention();
  const Sharding q = heads_sharding(context, kind, {batch, length, kind.heads, kind.head_dim}, false);
  return {{q.dims[0], q.dims[1]}, {}};
}

Array project_heads(const LayerCall& call, const Array& y, const Linear& layer) {
  const Sharding layout =
      block_sharding(*call.context.rules, {y.shape()[0], y.shape()[1], call.model.moe_emb});
  // The sequence goes back to its layout between layers now, unless the heads have its axes.
  Sharding tokens = y.sharding();
  if (axes_before(layout.dims[1], Sharding{{tokens.dims[0], tokens.dims[2]}, {}}) == layout.dims[1])
    tokens.dims[1] = layout.dims[1];
  return layer.apply(call.context, "BSND,NDM->BSM", reshard(call.context, y, tokens), &layout);
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

Array latent_attention(const LayerCall& call, const Array& x) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  const AttentionKind& kind = call.attention();
  const Array h = attention_input(call, x);
  const std::int64_t batch = x.shape()[0], length = x.shape()[1];
  const Sharding tokens = h.sharding();
  auto heads = [&](std::int64_t dim) {
    return heads_sharding(c, kind, {batch, length, kind.heads, dim}, false);
  };
  auto norm = [&](const Array& y, const std::string& name) {
    return rms_norm(c, y, call.parameter("attention." + name), kind.latent_norm_epsilon);
  };
  std::vector<Linear> to_latents;
  if (kind.q_lora > 0) to_latents.push_back(linear(call, "attention.wq_a", kind.bias));
  to_latents.push_back(linear(call, "attention.wkv_a", kind.bias));
  const std::vector<Array> latents = apply_each(c, "BSM,MR->BSR", h, to_latents, tokens);
  Array q_in = h;
  if (kind.q_lora > 0) q_in = norm(checkpoint_name(latents.front(), "query_wa_proj"), "q_a_norm");
  const Sharding q_layout = heads(kind.nope + kind.rope_dim);
  Array q = linear(call, kind.q_lora > 0 ? "attention.wq_b" : "attention.query")
                .apply(c, kToHeads, q_in, &q_layout);
  q = rope(c, checkpoint_name(q, "mla_q"), call.rope, kind.nope, kind.rope.interleaved);
  if (kind.scales_queries()) q = rope(c, q, call.growth, 0, kind.rope.interleaved);
  q = checkpoint_name(q, "query_proj");
  std::optional<IndexVectors> index;
  if (kind.has_indexer()) index = index_vectors(call, h, q_in);

  const Array compressed = checkpoint_name(latents.back(), "kv_wa_proj");
  const auto [latent, rotary] = split_last(c, compressed, kind.kv_lora);
  Array normed = norm(latent, "kv_a_norm"), key = rope(c, rotary, call.rope, 0, kind.rope.interleaved);
  if (call.cache != nullptr) {
    const Array keys[] = {normed, key};
    cache_append(c, *call.cache, q, keys, {}, *call.places, index ? &index->k : nullptr);  // values: `normed`
    if (!call.places->from_beginning)
      return project_out(call, attend_latent(call, q, q_layout, index ? &*index : nullptr));
    // Rounds as the cache does: a token sees the same values of other tokens in whichever call these came.
    normed = cache_round_trip(c, *call.cache, normed);
    key = cache_round_trip(c, *call.cache, key);
  }
  const Sharding kv_layout = heads(kind.nope + kind.v_dim);
  const Array kv =
      checkpoint_name(linear(call, "attention.wkv_b").apply(c, kToHeads, normed, &kv_layout), "mla_kv");
  const auto [k, v] = mla_key_value(c, kv, key, kind.nope);
  checkpoint_name(k, "key_proj");
  checkpoint_name(v, "value_proj");
  IndexChoice choice;
  if (index) {
    choice = choose_keys_of(call, *index);
    call.flow->choice = choice.chosen;
  } else if (call.layer.choice_of >= 0) {
    choice.chosen = call.flow->choice;
  }
  if (choice.scores.defined()) {
    *call.indexer_loss =
        index_loss(c, choice.scores, q, k, call.segments, m.indexer_sparse ? choice.chosen : Array(),
                   {static_cast<float>(kind.scale), m.indexer_loss});
  }
  const Array attended =
      checkpoint_name(attention(c, q, k, v, call.segments, attention_options(call), nullptr, call.scores,
                                choice.chosen.defined() ? &choice.chosen : nullptr),
                      "context");
  return project_out(call, attended);
}

Array gated_mlp(const LayerCall& call, const std::string& prefix, float limit, const Array& x) {
  Context& c = call.context;
  const Array h = constrain(c, x, {"activation_batch", "activation_length", ""});
  const Linear to_hidden[] = {linear(call, prefix + "wi_0"), linear(call, prefix + "wi_1")};
  const std::vector<Array> hidden =
      apply_each(c, "BSM,MH->BSH", h, to_hidden, {"activation_batch", "activation_length", "activation_mlp"});
  const Array gate = checkpoint_name(hidden[0], "mlpwi_0"), up = checkpoint_name(hidden[1], "mlpwi_1");
  const Array gated = limit == 0 ? swiglu(c, gate, up)
                                 : expert_gate(c, {.limit = limit, .clamp = call.model.moe().gate_clamp},
                                               gate, up, {}, {}, {});
  return checkpoint_name(linear(call, prefix + "wo").apply(c, "BSH,HM->BSM", gated, &x.sharding()), "mlpwo");
}

}  // namespace switchyard
