// Poolside Laguna (laguna): layers with a window have other numbers of query heads, each head's output has a
// gate, and the router is DeepSeek-V3's without groups.
//
// A layer:
//   q, k, v = W n(x); q and k normed over a head; rope on a share of a head, of the layer's kind
//   h = x + Wo (softmax(q·k · d^-1/2) v · softplus(Wg n(x))), a gate a head, or a value
//   y = h + MLP(m) in dense layers, m = n(h); else with s = sigmoid(G m), the K largest s + b,
//     w = s / sum of the chosen s · factor: y = h + sum of w[e]·E[e](m) + S(m)
#include <fmt/format.h>

#include <set>

#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kLagunaBlock{.name = "laguna", .experts = true};

constexpr TensorRule kLagunaTensors[] = {
    {"attention.gate", "self_attn.g_proj.weight"},
    {"moe.gate_bias", "mlp.experts.e_score_correction_bias", TensorForm::vector},
    {"moe.shared.wi_0", "mlp.shared_expert.gate_proj.weight"},
    {"moe.shared.wi_1", "mlp.shared_expert.up_proj.weight"},
    {"moe.shared.wo", "mlp.shared_expert.down_proj.weight"},
};

constexpr std::string_view kLagunaRead[] = {"gating",
                                            "sliding_window",
                                            "num_attention_heads_per_layer",
                                            "mlp_layer_types",
                                            "num_experts",
                                            "num_experts_per_tok",
                                            "moe_intermediate_size",
                                            "shared_expert_intermediate_size",
                                            "moe_routed_scaling_factor"};
constexpr FixedField kLagunaRefused[] = {{"rope_scaling", "null"},
                                         {"moe_router_logit_softcapping", "0"},
                                         {"moe_apply_router_weight_on_input", "false"}};

// The heads of the layers of one word, which must agree.
std::int64_t heads_of(const HubConfig& hub, const std::vector<std::string>& words, const char* word) {
  constexpr const char* kKey = "num_attention_heads_per_layer";
  const std::int64_t usual = hub.positive("num_attention_heads");
  if (!hub.has(kKey)) return usual;
  const json& list = list_of_layers(hub, kKey, "a number of heads");
  std::set<std::int64_t> heads;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!list[i].is_number_integer() || list[i] < 1) hub.wrong(kKey, "a number of heads for each layer");
    if (words[i] == word) heads.insert(list[i].get<std::int64_t>());
  }
  if (heads.size() > 1) hub.wrong(kKey, fmt::format("one number for all {} layers", word));
  return heads.empty() ? usual : *heads.begin();
}

void read_laguna(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualHead = 128, kUsualWindow = 512;
  read_grouped_attention(hub, {.head_dim = kUsualHead, .qk_norm = true}, keys);
  if (hub.has("rope_theta") && !hub.has("rope_parameters"))
    hub.wrong("rope_theta", "rope_parameters, with a rotation for each word of layer_types");
  const json gating = hub.has("gating") ? hub.at("gating") : json(true);
  if (gating != true && gating != "per-head" && gating != "per-element")
    hub.wrong("gating", "true, per-head or per-element");
  keys["attention_gate"] = gating == "per-element" ? "value" : "head";
  keys["attention_gate_curve"] = "softplus";
  std::vector<std::string> words(static_cast<std::size_t>(hub.positive("num_hidden_layers")),
                                 "full_attention");
  if (hub.has("layer_types")) words = words_of_layers(hub);
  keys["base_num_query_heads"] = heads_of(hub, words, "full_attention");
  read_two_kinds(hub,
                 {.words = words,
                  .windowed = {{"sliding_window_size",
                                hub.has("sliding_window") ? hub.positive("sliding_window") : kUsualWindow},
                               {"base_num_query_heads", heads_of(hub, words, "sliding_attention")}},
                  .full_rope = plain_rotation(5e5, 0.5),
                  .windowed_rope = plain_rotation(1e4, 1)},
                 keys);
  read_expert_layers(hub, 1, keys);
  keys["num_experts"] = hub.positive("num_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["shared_experts"] = 1;
  keys["shared_expert_mlp_dim"] = hub.positive("shared_expert_intermediate_size");
  keys["routed_score_func"] = "sigmoid";
  keys["routed_bias"] = true;
  keys["norm_topk_prob"] = true;
  keys["routed_scaling_factor"] = hub.number("moe_routed_scaling_factor", 1);
}

void write_laguna(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_two_kinds(config, model, hub);
  HubJson heads = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i) heads.push_back(model.attention_of(model.layer(i)).heads);
  hub["num_attention_heads_per_layer"] = heads;
  hub["gating"] = model.attention().gate_of_heads ? HubJson(true) : HubJson("per-element");
  write_expert_layers(model, hub);
  hub["num_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["shared_expert_intermediate_size"] = model.shared_mlp;
  hub["moe_routed_scaling_factor"] = config.get_float("routed_scaling_factor");
}

bool writes_laguna(const ModelConfig& model) {
  const AttentionKind& k = model.attention();
  return has_two_kinds(model) && k.gate && k.gate_softplus && k.qk_norm && !k.bias && k.v_dim == k.head_dim &&
         model.shared_experts > 0 && model.moe().score == RouterScore::sigmoid && model.moe().normalise &&
         model.moe().groups <= 1;
}

using nlohmann::json;

constexpr GgufName kLagunaNames[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"exp_probs_b.bias", "mlp.experts.e_score_correction_bias"},
    kGatedSharedNames[0],
    kGatedSharedNames[1],
    kGatedSharedNames[2],
};

// A file says nothing of which layers have a window: llama.cpp gives none to each fourth, from the first on.
void add_laguna(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr std::int64_t kInterval = 4;
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  std::vector<bool> windows;
  for (std::int64_t i = 0; i < layers; ++i) windows.push_back(i % kInterval != 0);
  if (metadata.is_list("attention.sliding_window_pattern"))
    windows = metadata.flags("attention.sliding_window_pattern", layers);
  add_layer_types(windows, config);
  const std::vector<std::int64_t> heads = metadata.integers("attention.head_count", layers);
  config["num_attention_heads"] = heads.front();
  config["num_attention_heads_per_layer"] = heads;
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  const std::int64_t head = config["head_dim"].get<std::int64_t>(),
                     rotated = metadata.integer("rope.dimension_count", head);
  add_rotations(metadata, rotated, metadata.integer("rope.dimension_count_swa", rotated), config);
  // One row a head, or one a value.
  const std::int64_t gates = file.at("blk.0.attn_gate.weight").shape.front();
  config["gating"] = gates == heads.front() ? json(true) : json("per-element");
  add_layers_with_experts(file, config);
  config["num_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length");
  config["moe_routed_scaling_factor"] = factor_of_weights(metadata);
  metadata.integer("leading_dense_block_count", 0);  // tensors tell it
}

constexpr GgufArchitecture kLagunaGguf[] = {
    {.name = "laguna",
     .type = "laguna",
     .tensors = kLagunaNames,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_laguna},
};

}  // namespace

const ModelFamily kLaguna{
    .type = "laguna",
    .architecture = "LagunaForCausalLM",
    .block = &kLagunaBlock,
    .tensors = kLagunaTensors,
    .fused = kExpertsInMemory,
    .scales_sum = true,
    .fields = {.read = kLagunaRead, .refused = kLagunaRefused, .more = {&kGroupedFields, &kNamesOfExperts}},
    .gguf = kLagunaGguf,
    .read = read_laguna,
    .write = write_laguna,
    .writes = writes_laguna,
    .restate = restate_router_bias};

}  // namespace switchyard
