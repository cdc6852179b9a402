// Lists the weights of a model, in their fixed order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "models/blocks/mixer.h"
#include "models/blocks/spec_list.h"
#include "models/model_router.h"
#include "models/name_patterns.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

void mlp_specs(const ModelConfig& m, const std::string& p, std::int64_t width, SpecList& list) {
  list.kernel(p + "wi_0", {m.emb, width}, {"embed", "mlp"}, m.emb);
  list.kernel(p + "wi_1", {m.emb, width}, {"embed", "mlp"}, m.emb);
  list.kernel(p + "wo", {width, m.emb}, {"mlp", "embed"}, width);
}

void moe_specs(const ModelConfig& m, const std::string& p, SpecList& list) {
  const std::int64_t experts = m.moe().experts;
  list.kernel(p + "gate", {m.moe_emb, experts}, {"embed_router", ""}, m.moe_emb);
  // transformers keeps the gate in float32 if the product with the gate is in float32.
  if (m.moe_execution.float32_gate_logits && !m.compat) list.specs().back().dtype = DType::f32;
  if (m.moe().bias) {
    list.add(p + "gate_bias", {experts}, {""}, Initializer::zeros, 0);
    list.specs().back().dtype = DType::f32;  // increments of 1e-3 must not round away
    list.specs().back().trained = list.specs().back().counted = decays_router_bias(m);
  }
  if (m.moe().logit_bias) list.bias(p + "logit_bias", {experts}, {""});
  const MatrixForm each{1, 1};
  list.kernel(p + "wi_0", {experts, m.moe_emb, m.moe_mlp}, {"exp", "embed_moe", "mlp_moe"}, m.moe_emb, each);
  list.kernel(p + "wi_1", {experts, m.moe_emb, m.moe_mlp}, {"exp", "embed_moe", "mlp_moe"}, m.moe_emb, each);
  list.kernel(p + "wo", {experts, m.moe_mlp, m.moe_emb}, {"exp", "mlp_moe", "embed_moe"}, m.moe_mlp, each);
  if (m.moe().expert_bias) {
    list.bias(p + "wi_0_bias", {experts, m.moe_mlp}, {"exp", "mlp_moe"});
    list.bias(p + "wi_1_bias", {experts, m.moe_mlp}, {"exp", "mlp_moe"});
    list.bias(p + "wo_bias", {experts, m.moe_emb}, {"exp", "embed_moe"});
  }
  if (m.shared_experts > 0) mlp_specs(m, p + "shared.", m.shared_mlp, list);
  if (m.shared_gate) list.kernel(p + "shared.gate", {m.emb, 1}, {"embed", ""}, m.emb, {});
}

// The parameters that a prediction layer has beside those of any layer.
void prediction_specs(const ModelConfig& m, const std::string& p, SpecList& list) {
  list.norm(p + "token_norm", m.emb);
  list.norm(p + "hidden_norm", m.emb);
  list.kernel(p + "projection", {2 * m.emb, m.emb}, {"embed", "mlp"}, 2 * m.emb);
  if (m.prediction_norms) list.norm(p + "final_norm", m.emb);
}

// trainable_parameters_mask: what no pattern names is not trained.
void freeze(const ModelConfig& m, std::vector<ParameterSpec>& specs) {
  const NamePatterns trainable("trainable_parameters_mask", m.trainable);
  if (trainable.empty()) return;
  bool any = false;
  for (ParameterSpec& spec : specs) {
    const bool chosen = trainable.find_in(spec.name);
    any = any || (chosen && spec.trained);
    if (chosen) continue;
    // MaxText moves a router's bias beside the optimizer, whatever its mask says.
    const bool moves = m.compat && spec.name.ends_with(".gate_bias");
    spec.trained = false;
    spec.frozen = !moves;
  }
  if (!any)
    fail_usage("[model] trainable_parameters_mask={}: names no parameter that trains, such as {}",
               fmt::join(m.trainable, ","), specs.back().name);
}

// weight_places: the first pattern that is found in a name decides.
void put_in_places(const ModelConfig& m, std::vector<ParameterSpec>& specs) {
  std::vector<bool> decided(specs.size(), false);
  for (const std::string& entry : m.weight_places) {
    const std::size_t end = entry.rfind('=');
    const std::string pattern = entry.substr(0, end), word = end < entry.size() ? entry.substr(end + 1) : "";
    if (pattern.empty() || (word != "device" && word != "host"))
      fail_usage("[config] weight_places: expected PATTERN=device or PATTERN=host, got '{}'", entry);
    const NamePatterns patterns("weight_places", {pattern});
    bool any = false;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!patterns.find_in(specs[i].name)) continue;
      any = true;
      if (decided[i]) continue;
      decided[i] = true;
      specs[i].place = word == "host" ? WeightPlace::host : WeightPlace::device;
    }
    if (!any)
      fail_usage("[model] weight_places: '{}' names no weight of this model, such as {}", pattern,
                 specs.back().name);
  }
}

}  // namespace

std::vector<ParameterSpec> parameter_specs(const ModelConfig& m) {
  SpecList list(m);
  list.add("embedding", {m.vocab, m.emb}, {"vocab", "embed_vocab"}, Initializer::normal, 1);
  for (std::int64_t i = 0; i < m.depth(); ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    if (i >= m.layers) prediction_specs(m, p + "prediction.", list);
    list.norm(p + "pre_attention_norm", m.emb);
    const LayerSpec& layer = m.layer(i);
    mixer_of(m, layer).add_specs(m, layer, p, list);
    list.norm(p + "post_attention_norm", m.moe_emb);
    if (layer.has_experts())
      moe_specs(m, p + "moe.", list);
    else
      mlp_specs(m, p + "mlp.", m.mlp_of(layer).width, list);
    if (m.post_mlp_norm) list.norm(p + "post_mlp_norm", m.emb);
    if (m.latent_experts) list.kernel(p + "up_projection", {m.moe_emb, m.emb}, {"mlp", "embed"}, m.moe_emb);
  }
  list.norm("final_norm", m.emb);
  if (!m.tied) list.kernel("head", {m.emb, m.vocab}, {"embed_vocab", "vocab"}, m.emb, {});
  freeze(m, list.specs());
  if (m.adapter != nullptr) list.specs() = with_adapter(std::move(list.specs()), *m.adapter);
  put_in_places(m, list.specs());
  return std::move(list.specs());
}

}  // namespace switchyard
