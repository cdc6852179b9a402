// Lists the weights of a model, in their fixed order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "core/error.h"
#include "models/model_router.h"
#include "models/name_patterns.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

class SpecList {
 public:
  explicit SpecList(const ModelConfig& model) : m_(model) {}

  void kernel(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
              MatrixForm form = {0, 1}) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::truncated_normal,
        1 / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = form;
  }
  void projection(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
                  double factor = 1) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::normal,
        factor / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = {0, 1};
  }
  void norm(std::string name, std::int64_t dim, std::string logical = "norm") {
    add(std::move(name), {dim}, {std::move(logical)},
        m_.norm_plus_one ? Initializer::zeros : Initializer::ones, 0);
  }
  void norm_of_heads(std::string name, Shape heads) {
    add(std::move(name), std::move(heads), {"", ""}, Initializer::ones, 0);
  }
  void bias(std::string name, Shape shape, std::vector<std::string> dims) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::zeros, 0);
  }
  void add(std::string name, Shape shape, std::vector<std::string> dims, Initializer initializer,
           double deviation) {
    specs_.push_back({std::move(name),
                      std::move(shape),
                      std::move(dims),
                      initializer,
                      deviation,
                      m_.weight_dtype,
                      true,
                      {}});
  }
  std::vector<ParameterSpec>& specs() { return specs_; }

 private:
  const ModelConfig& m_;
  std::vector<ParameterSpec> specs_;
};

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

void attention_specs(const ModelConfig& m, const AttentionKind& k, const std::string& p, SpecList& list) {
  if (!k.mla) {
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
  } else {
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
    list.projection(p + "wkv_b", {k.kv_lora, k.heads, k.nope + k.v_dim},
                    {"kv_lora", "kv_heads", "kv_head_dim"}, k.kv_lora);
    if (k.has_indexer()) indexer_specs(m, k, p + "indexer.", list);
  }
  list.projection(p + "out", {k.heads, k.v_dim, m.moe_emb}, {"heads", "kv", "embed_attn"}, k.heads * k.v_dim);
  list.specs().back().matrix.inputs = 2;
  if (k.out_bias) list.bias(p + "out_bias", {m.moe_emb}, {"norm"});
}

// The parameters of a gated delta net; heads are a dim of their own.
void delta_specs(const ModelConfig& m, const DeltaKind& k, const std::string& p, SpecList& list) {
  const std::int64_t key_heads = k.key_heads, heads = k.value_heads;
  const auto products = [&](const char* name, std::int64_t count, std::int64_t width) {
    list.kernel(p + name, {m.emb, count, width}, {"embed_attn", "gdn_head", ""}, m.emb);
  };
  products("query", key_heads, k.key_dim);
  products("key", key_heads, k.key_dim);
  products("value", heads, k.value_dim);
  products("gate", heads, k.value_dim);
  list.kernel(p + "strength", {m.emb, heads}, {"embed_attn", "gdn_head"}, m.emb);
  list.kernel(p + "decay", {m.emb, heads}, {"embed_attn", "gdn_head"}, m.emb);
  const auto taps = [&](const char* name, std::int64_t count, std::int64_t width) {
    list.kernel(p + name, {count, width, k.taps}, {"gdn_head", "", ""}, k.taps, {});
  };
  taps("query_conv", key_heads, k.key_dim);
  taps("key_conv", key_heads, k.key_dim);
  taps("value_conv", heads, k.value_dim);
  constexpr double kFastestDecay = 16;
  list.add(p + "decay_rate", {heads}, {"gdn_head"}, Initializer::log_uniform, kFastestDecay);
  list.add(p + "decay_bias", {heads}, {"gdn_head"}, Initializer::ones, 0);
  list.add(p + "norm", {k.value_dim}, {""}, Initializer::ones, 0);
  list.kernel(p + "out", {heads, k.value_dim, m.emb}, {"gdn_head", "", "embed_attn"}, heads * k.value_dim,
              {0, 2});
}

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

double held_factor(const ModelConfig& m, std::string_view parameter) {
  const bool query = parameter.ends_with("attention.query") || parameter.ends_with("attention.query_bias");
  if (!query || !m.compat) return 1;
  const AttentionKind& k = m.attention_of(m.layer(layer_of(std::string(parameter))));
  return !k.mla && k.scale == 1.0 ? 1 / std::sqrt(static_cast<double>(k.head_dim)) : 1.0;
}

std::vector<ParameterSpec> parameter_specs(const ModelConfig& m) {
  SpecList list(m);
  list.add("embedding", {m.vocab, m.emb}, {"vocab", "embed_vocab"}, Initializer::normal, 1);
  for (std::int64_t i = 0; i < m.depth(); ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    if (i >= m.layers) prediction_specs(m, p + "prediction.", list);
    list.norm(p + "pre_attention_norm", m.emb);
    const LayerSpec& layer = m.layer(i);
    if (layer.delta >= 0)
      delta_specs(m, m.delta_of(layer), p + "delta.", list);
    else
      attention_specs(m, m.attention_of(layer), p + "attention.", list);
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
  put_in_places(m, list.specs());
  return std::move(list.specs());
}

}  // namespace switchyard
