#include "models/decoder_layer.h"

#include "autograd/remat.h"
#include "models/blocks/mixer.h"
#include "ops/basic.h"
#include "ops/norm.h"
#include "ops/output_gate.h"

namespace switchyard {

MoeWeights moe_weights(const LayerCall& call) {
  MoeWeights w;
  w.gate = {.weight = call.parameter("moe.gate"), .adapter = adapter_of(call, "moe.gate")};
  const MoeConfig& config = call.model.moe_of(call.layer);
  if (config.bias) w.gate_bias = call.parameter("moe.gate_bias");
  const auto experts = [&](const std::string& name) {
    Linear layer = linear(call, name);
    if (config.expert_bias) layer.bias = weight(call, name + "_bias");
    return layer;
  };
  w.wi_0 = experts("moe.wi_0");
  w.wi_1 = experts("moe.wi_1");
  w.wo = experts("moe.wo");
  if (config.logit_bias) w.logit_bias = call.parameter("moe.logit_bias");
  return w;
}

Array shared_experts(const LayerCall& call, const Array& x) {
  const Array y = gated_mlp(call, "moe.shared.", call.model.moe_of(call.layer).shared_limit, x);
  if (!call.model.shared_gate) return y;
  const Sharding one{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}};
  const Array gate = linear(call, "moe.shared.gate").apply(call.context, "BSM,MG->BSG", x, &one);
  return output_gate(call.context, y, gate);
}

LayerOutput decoder_layer(const LayerCall& call, const Array& x, std::int64_t layer, const DrawnRows& rows) {
  Context& c = call.context;
  const ModelConfig& m = call.model;
  auto norm = [&](const Array& y, const char* name) {
    return rms_norm(c, y, call.parameter(name), m.norm_epsilon, m.norm_offset());
  };
  const Array normed = norm(x, "pre_attention_norm");
  const Array attended = mixer_of(m, call.layer).forward(call, normed);
  if (m.latent_experts) {
    MoeOutput moe = moe_block(c, m.moe_of(call.layer), m.moe_execution, moe_weights(call),
                              norm(checkpoint_name(attended, "attention_out"), "post_attention_norm"),
                              call.segments, rows.step, layer, rows.first_row);
    const Array y =
        linear(call, "up_projection").apply(c, "BSL,LM->BSM", whole_embedding(c, moe.y), &x.sharding());
    return {add(c, x, y), std::move(moe)};
  }
  const Array middle = add(c, x, checkpoint_name(attended, "attention_out"));
  const Array inner = norm(middle, "post_attention_norm");
  const auto added = [&](const Array& y) {
    return add(c, middle, m.post_mlp_norm ? norm(y, "post_mlp_norm") : y);
  };
  if (!call.layer.has_experts())
    return {added(gated_mlp(call, "mlp.", m.mlp_of(call.layer).gate_limit, inner)), std::nullopt};

  MoeOutput moe = moe_block(c, m.moe_of(call.layer), m.moe_execution, moe_weights(call), inner, call.segments,
                            rows.step, layer, rows.first_row);
  Array y = added(moe.y);
  if (m.shared_experts > 0) y = add(c, y, shared_experts(call, inner));
  return {y, std::move(moe)};
}

}  // namespace switchyard
