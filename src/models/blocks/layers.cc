#include "models/blocks/layers.h"

#include "models/blocks/attention.h"
#include "moe/expert_biases.h"
#include "ops/basic.h"
#include "ops/reshard.h"

namespace switchyard {

Array weight(const LayerCall& call, const std::string& name) {
  return cast(call.context, call.parameter(name), call.model.dtype);
}

std::optional<LowRank> adapter_of(const LayerCall& call, const std::string& name) {
  if (call.model.adapter == nullptr) return std::nullopt;
  const auto found = call.model.adapter->weights.find(call.prefix + name);
  if (found == call.model.adapter->weights.end()) return std::nullopt;
  return LowRank{call.parameter(lora_a_of(name, found->second)), call.parameter(lora_b_of(name)),
                 found->second.scale, call.adapters, call.model.adapter->count};
}

Linear linear(const LayerCall& call, const std::string& name, bool biased) {
  return {.weight = weight(call, name),
          .bias = biased ? call.parameter(name + "_bias") : Array(),
          .adapter = adapter_of(call, name)};
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
