#include "models/blocks/attention.h"

#include "ops/reshard.h"

namespace switchyard {

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

Array attention_input(const LayerCall& call, const Array& x) {
  Sharding tokens = attention_tokens(call.context, call.model, x.shape()[0], x.shape()[1]);
  tokens.dims.emplace_back();
  return reshard(call.context, x, tokens);
}

Array project_out(const LayerCall& call, const Array& attended) {
  const Linear out = linear(call, "attention.out", call.attention().out_bias);
  return checkpoint_name(project_heads(call, attended, out), "out_proj");
}

void out_specs(const ModelConfig& m, const AttentionKind& k, const std::string& p, SpecList& list) {
  list.projection(p + "out", {k.heads, k.v_dim, m.moe_emb}, {"heads", "kv", "embed_attn"}, k.heads * k.v_dim);
  list.specs().back().matrix.inputs = 2;
  if (k.out_bias) list.bias(p + "out_bias", {m.moe_emb}, {"norm"});
}

double attended_products(const ModelConfig& m, const AttentionKind& k, std::int64_t qk, double keys) {
  const auto heads = static_cast<double>(k.heads), v = static_cast<double>(k.v_dim);
  return heads * v * static_cast<double>(m.moe_emb) + heads * (static_cast<double>(qk) + v) * keys;
}

}  // namespace switchyard
