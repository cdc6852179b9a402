// Multi-head latent attention.
#include <optional>
#include <tuple>

#include "models/blocks/attention.h"
#include "models/blocks/indexer.h"
#include "models/blocks/mixer.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Several adapters of wkv_b act on queries and sums of latent vectors, since no weight has them: with W_k +
// A·B_k of a token's adapter, W_kᵀ q becomes W_kᵀ q + A (B_kᵀ q).
struct LatentAdapters {
  LowRankEinsum keys, values;
};
LatentAdapters latent_adapters(const LayerCall& call, const LowRank& of) {
  const Array a = of.a_in(call.context, call.model.dtype);
  const auto [b_key, b_value] =
      split_up_projection(call.context, of.b_in(call.context, call.model.dtype), call.attention().nope);
  return {{"BSND,NKD->BSNK", "BSNK,RK->BSNR", {b_key}, {a}, of.numbers, of.count},
          {"BSNR,RK->BSNK", "BSNK,NKD->BSND", {a}, {b_value}, of.numbers, of.count}};
}

// Attention over remembered latent vectors: q·(W_k c) = (W_kᵀ q)·c, and the sum of weighted W_v c is W_v of
// the sum of weighted c.
Array attend_latent(const LayerCall& call, const Array& q, const Sharding& q_layout,
                    const IndexVectors* index) {
  Context& c = call.context;
  const AttentionKind& kind = call.attention();
  const Linear up = linear(call, "attention.wkv_b");
  std::optional<LatentAdapters> adapters;
  if (up.adapter && up.adapter->count > 0) adapters = latent_adapters(call, *up.adapter);
  if (!call.cache->key_up.defined()) {
    std::tie(call.cache->key_up, call.cache->value_up) =
        split_up_projection(c, adapters ? up.weight : up.merged(c), kind.nope);
  }
  const Sharding* const layout = &q_layout;
  const auto product = [&](std::string_view spec, const Array& x, const Array& weight,
                           const LowRankEinsum* low_rank) {
    return einsums(c, spec, x, {&weight, 1}, {&layout, 1}, low_rank).front();
  };
  const auto [plain, turned] = split_last(c, q, kind.nope);
  const Array latent_q = join_last(
      c, product("BSND,NRD->BSNR", plain, call.cache->key_up, adapters ? &adapters->keys : nullptr), turned);
  const CacheChoice choice{index, kind.indexer_topk, &call.flow->in_cache};
  const bool chooses = index != nullptr || call.layer.choice_of >= 0;
  const Array sums = attend(c, *call.cache, latent_q, *call.places, attention_options(call), nullptr,
                            chooses ? &choice : nullptr);
  return product("BSNR,NRD->BSND", sums, call.cache->value_up, adapters ? &adapters->values : nullptr);
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

// The indexer, which chooses the keys of MLA's attention.
void indexer_specs(const ModelConfig& m, const AttentionKind& k, const std::string& p, SpecList& list) {
  const std::size_t first = list.specs().size();
  list.projection(p + "wq_b", {k.q_lora, k.indexer_heads, k.indexer_dim}, {"q_lora", "q_heads", "kv"},
                  k.q_lora);
  list.projection(p + "wk", {m.emb, k.indexer_dim}, {"embed_attn", "kv"}, m.emb);
  list.add(p + "k_norm", {k.indexer_dim}, {""}, Initializer::ones, 0);
  list.bias(p + "k_norm_bias", {k.indexer_dim}, {""});
  list.projection(p + "weights", {m.emb, k.indexer_heads}, {"embed_attn", "q_heads"}, m.emb);
  list.specs().back().dtype = DType::f32;  // as the reference has it
  // Without a loss it is left as it is; the reference's optimizer decays it.
  for (std::size_t i = first; i < list.specs().size(); ++i) {
    list.specs()[i].trained = m.indexer_loss > 0 || m.compat;
    list.specs()[i].frozen = !list.specs()[i].trained;
  }
}

void latent_specs(const ModelConfig& m, const LayerSpec& layer, const std::string& prefix, SpecList& list) {
  const AttentionKind& k = m.attention_of(layer);
  const std::string p = prefix + "attention.";
  const std::int64_t qk = k.nope + k.rope_dim;
  if (k.q_lora > 0) {
    list.projection(p + "wq_a", {m.emb, k.q_lora}, {"embed_attn", "q_lora_up_proj"}, m.emb);
    if (k.bias) list.bias(p + "wq_a_bias", {k.q_lora}, {""});
    list.norm(p + "q_a_norm", k.q_lora, "");
    list.projection(p + "wq_b", {k.q_lora, k.heads, qk}, {"q_lora", "q_heads", "kv"}, k.q_lora);
  } else {
    list.projection(p + "query", {m.emb, k.heads, qk}, {"embed_attn", "q_heads", "kv"}, m.emb);
  }
  list.projection(p + "wkv_a", {m.emb, k.kv_lora + k.rope_dim}, {"embed_attn", "kv_lora_up_proj"}, m.emb);
  if (k.bias) list.bias(p + "wkv_a_bias", {k.kv_lora + k.rope_dim}, {""});
  list.norm(p + "kv_a_norm", k.kv_lora, "");
  list.projection(p + "wkv_b", {k.kv_lora, k.heads, k.nope + k.v_dim}, {"kv_lora", "kv_heads", "kv_head_dim"},
                  k.kv_lora);
  if (k.has_indexer()) indexer_specs(m, k, p + "indexer.", list);
  out_specs(m, k, p, list);
}

double latent_products(const ModelConfig& m, const LayerSpec& layer, std::int64_t sequence) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const AttentionKind& k = m.attention_of(layer);
  const double qk = d(k.nope + k.rope_dim), heads = d(k.heads), emb = d(m.emb);
  double sum = k.q_lora > 0 ? emb * d(k.q_lora) + d(k.q_lora) * heads * qk : emb * heads * qk;
  sum += emb * d(k.kv_lora + k.rope_dim) + d(k.kv_lora) * heads * d(k.nope + k.v_dim);
  double keys = mean_keys(sequence);
  if (k.has_indexer() && sequence > k.indexer_topk) {
    const double chosen = d(k.indexer_topk), index = d(k.indexer_heads);
    sum += d(k.q_lora) * index * d(k.indexer_dim) + emb * (d(k.indexer_dim) + index);
    sum += index * d(k.indexer_dim + 1) * keys;
    keys = chosen - chosen * chosen / (2 * d(sequence));
  }
  return sum + attended_products(m, k, k.nope + k.rope_dim, keys);
}

}  // namespace

const Mixer kLatentAttention{
    .add_specs = latent_specs, .forward = latent_attention, .products = latent_products};

}  // namespace switchyard
