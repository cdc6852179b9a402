// Step 3.5 and 3.7 Flash (step3p5, in step3p7 beside what sees images): layers with a window have other
// numbers of query heads, each head's output has a gate, and some layers clamp their gates.
//
// A layer, n(x) a norm that multiplies by 1 + weight:
//   q, k, v = W n(x); q and k normed over a head; rope on a share of a head, of the layer's kind
//   h = x + Wo (softmax(q·k · d^-1/2) v · sigmoid(Wg n(x))), a gate a head
//   y = h + MLP(m) in dense layers, m = n(h); else with s = sigmoid(G m), the K largest s + b,
//     w = s / sum of the chosen s · factor: y = h + sum of w[e]·E[e](m) + S(m)
//   An MLP, an expert and S are W (min(silu(W0 m), L) · clamp(W1 m, -L, L)), L by layer; none: no clamp
#include <fmt/format.h>

#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kStep3Block{.name = "step3p5", .experts = true, .norms_plus_one = true};

constexpr TensorRule kStep3Tensors[] = {
    {"attention.gate", "self_attn.g_proj.weight"},
    {"moe.gate", "moe.gate.weight"},
    {"moe.gate_bias", "moe.router_bias", TensorForm::vector},
    {"moe.shared.wi_0", "share_expert.gate_proj.weight"},
    {"moe.shared.wi_1", "share_expert.up_proj.weight"},
    {"moe.shared.wo", "share_expert.down_proj.weight"},
};

// A tensor holds one product of all experts.
constexpr std::string_view kGateOfExperts[] = {"mlp.experts.{}.gate_proj.weight"},
                           kUpOfExperts[] = {"mlp.experts.{}.up_proj.weight"};
constexpr FusedRule kStep3Fused[] = {
    {.fused = "moe.gate_proj.weight", .parts = kGateOfExperts},
    {.fused = "moe.up_proj.weight", .parts = kUpOfExperts},
    {.fused = "moe.down_proj.weight", .parts = kDownOfExperts},
    kExpertsInMemory[0],
    kExpertsInMemory[1],
};

constexpr OtherName kStep3OtherNames[] = {{"num_attention_groups", "num_key_value_heads"},
                                          {"moe_num_experts", "n_routed_experts"},
                                          {"moe_top_k", "num_experts_per_tok"},
                                          {"share_expert_dims", "share_expert_dim"},
                                          {"num_mtp_layers", "num_nextn_predict_layers"}};

constexpr std::string_view kStep3Read[] = {"sliding_window",         "num_sliding_attention_heads",
                                           "per_layer_config",       "attention_other_setting",
                                           "query_pre_attn_scalar",  "mlp_layer_types",
                                           "moe_layers_enum",        "n_routed_experts",
                                           "num_experts_per_tok",    "moe_intermediate_size",
                                           "share_expert_dim",       "moe_router_scaling_factor",
                                           "swiglu_limits",          "swiglu_limits_shared",
                                           "partial_rotary_factors", "num_nextn_predict_layers"};
constexpr FixedField kStep3Refused[] = {{"gating", "true"},
                                        {"use_head_wise_attn_gate", "true"},
                                        {"use_moe_router_bias", "true"},
                                        {"moe_router_activation", R"("sigmoid")"},
                                        {"norm_expert_weight", "true"},
                                        {"use_moe", "true"},
                                        {"use_bidirectional_attention", "false"}};
// Kinds of the draft layers, which are left out.
constexpr std::string_view kStep3Unused[] = {"mtp_layer_types", "mtp_mlp_layer_types", "need_fp32_gate",
                                             "yarn_only_types", "max_seq_len"};

// The list `key` without the entries of draft layers that published files have at its end.
json of_layers(const HubConfig& hub, const char* key) {
  const auto layers = static_cast<std::size_t>(hub.positive("num_hidden_layers")),
             drafts = static_cast<std::size_t>(hub.integer("num_nextn_predict_layers", 0));
  json list = hub.at(key);
  if (list.is_array() && list.size() == layers + drafts)
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(layers), list.end());
  if (!list.is_array() || list.size() != layers)
    hub.wrong(key, fmt::format("a value for each of {} layers", layers));
  return list;
}

std::vector<std::string> words_of_step3(const HubConfig& hub) {
  json all = hub.all();
  if (!hub.has("layer_types"))
    return std::vector<std::string>(static_cast<std::size_t>(hub.positive("num_hidden_layers")),
                                    "full_attention");
  all["layer_types"] = of_layers(hub, "layer_types");
  return words_of_layers(HubConfig(all));
}

// mlp_layer_types says which layers have experts; else moe_layers_enum does, numbers in a text; else all have
// them from the fourth on.
json step3_layers_with_experts(const HubConfig& hub) {
  const std::int64_t layers = hub.positive("num_hidden_layers");
  json numbers = json::array();
  if (hub.has("mlp_layer_types")) {
    json all = hub.all();
    all["mlp_layer_types"] = of_layers(hub, "mlp_layer_types");
    numbers = layers_that_are(HubConfig(all), "mlp_layer_types", "sparse", "dense");
  } else if (hub.has("moe_layers_enum")) {
    constexpr const char* kKey = "moe_layers_enum";
    const json& stated = hub.at(kKey);
    const json list =
        stated.is_string() ? json::parse("[" + stated.get<std::string>() + "]", nullptr, false) : stated;
    if (!list.is_array()) hub.wrong(kKey, "numbers of layers");
    for (const json& layer : list) {
      if (!layer.is_number_integer() || layer < 0) hub.wrong(kKey, "numbers of layers");
      if (layer < layers) numbers.push_back(layer);
    }
  } else {
    constexpr std::int64_t kUsualDense = 3;
    for (std::int64_t i = kUsualDense; i < layers; ++i) numbers.push_back(i);
  }
  if (numbers.empty())
    hub.wrong(hub.has("mlp_layer_types") ? "mlp_layer_types" : "moe_layers_enum", "a layer with experts");
  return numbers;
}

// Limits of gates: 0 and null are none.
json limits_of(const HubConfig& hub, const char* key) {
  json limits = json::array();
  if (!hub.has(key)) return limits;
  bool any = false;
  for (const json& limit : of_layers(hub, key)) {
    if (!limit.is_null() && (!limit.is_number() || limit < 0))
      hub.wrong(key, "null, 0 or more for each layer");
    limits.push_back(limit.is_null() ? json(0) : limit);
    any = any || limits.back() > 0;
  }
  return any ? limits : json::array();
}

// The rotation of a word's layers in a file that states a number a layer, or one for all. rope_scaling is of
// layers without a window.
json rotation_of(const HubConfig& hub, const std::vector<std::string>& words, const char* word) {
  const auto first = static_cast<std::size_t>(std::ranges::find(words, word) - words.begin());
  json rope = {{"rope_type", "default"}};
  if (std::string_view(word) == "full_attention" && hub.has("rope_scaling"))
    rope.update(hub.at("rope_scaling"));
  const auto value = [&](const char* key, double usual) {
    if (!hub.has(key)) return json(usual);
    if (!hub.at(key).is_array()) return hub.at(key);
    const json list = of_layers(hub, key);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i] == word && list[i] != list[first])
        hub.wrong(key, fmt::format("one number for all {} layers", word));
    }
    return first < words.size() ? list[first] : json(usual);
  };
  rope["rope_theta"] = value("rope_theta", 10000);
  rope["partial_rotary_factor"] = value("partial_rotary_factors", 1);
  return rope;
}

std::int64_t windowed_heads(const HubConfig& hub) {
  const std::int64_t heads = hub.positive("num_attention_heads");
  if (hub.has("num_sliding_attention_heads")) return hub.positive("num_sliding_attention_heads");
  if (!hub.has("attention_other_setting")) return heads;
  const json& other = hub.at("attention_other_setting");
  if (!other.is_object()) hub.wrong("attention_other_setting", "an object");
  const HubConfig setting(other, "attention_other_setting ");
  const auto same = [&](const char* key, const char* model, std::int64_t value) {
    if (setting.has(key) && setting.positive(key) != value)
      setting.wrong(key, fmt::format("{}, as {}", value, model));
  };
  same("num_attention_groups", "num_key_value_heads", hub.positive("num_key_value_heads"));
  if (hub.has("head_dim")) same("head_dim", "head_dim", hub.positive("head_dim"));
  return setting.has("num_attention_heads") ? setting.positive("num_attention_heads") : heads;
}

// per_layer_config repeats the heads of layers with a window.
void check_settings_by_layer(const HubConfig& hub, const std::vector<std::string>& words,
                             std::int64_t heads) {
  if (!hub.has("per_layer_config")) return;
  for (const auto& [layer, settings] : hub.at("per_layer_config").items()) {
    const auto i = static_cast<std::size_t>(std::strtoull(layer.c_str(), nullptr, 10));
    if (i >= words.size() || words[i] != "sliding_attention" ||
        settings != json{{"num_attention_heads", heads}})
      hub.wrong("per_layer_config", fmt::format("num_attention_heads={} for layers with a window", heads));
  }
}

void read_step3(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualHead = 128;
  read_grouped_attention(hub, {.head_dim = kUsualHead, .qk_norm = true}, keys);
  if (hub.number("query_pre_attn_scalar", keys["head_dim"]) != keys["head_dim"].get<double>())
    hub.wrong("query_pre_attn_scalar", fmt::format("head_dim={}", keys["head_dim"].dump()));
  keys["attention_gate"] = "head";
  const std::vector<std::string> words = words_of_step3(hub);
  const bool windows = std::ranges::count(words, "sliding_attention") > 0;
  const std::int64_t heads = windowed_heads(hub);
  check_settings_by_layer(hub, words, heads);
  read_two_kinds(hub,
                 {.words = words,
                  .windowed = {{"sliding_window_size", windows ? hub.positive("sliding_window") : 0},
                               {"base_num_query_heads", heads}},
                  .full_rope = rotation_of(hub, words, "full_attention"),
                  .windowed_rope = rotation_of(hub, words, "sliding_attention")},
                 keys);
  keys["moe_layers"] = step3_layers_with_experts(hub);
  keys["num_experts"] = hub.positive("n_routed_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["shared_experts"] = 1;
  keys["shared_expert_mlp_dim"] = hub.positive("share_expert_dim");
  keys["routed_score_func"] = "sigmoid";
  keys["routed_bias"] = true;
  keys["norm_topk_prob"] = true;
  keys["routed_scaling_factor"] = hub.number("moe_router_scaling_factor", 1);
  keys["expert_gate_clamp"] = "after";
  keys["expert_gate_limits"] = limits_of(hub, "swiglu_limits");
  keys["shared_gate_limits"] = limits_of(hub, "swiglu_limits_shared");
}

void write_step3(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_two_kinds(config, model, hub);
  HubJson routed = HubJson::array(), others = HubJson::array(), heads = HubJson::object();
  const auto limit = [](float value) { return value == 0 ? HubJson(nullptr) : HubJson(shortest(value)); };
  const AttentionKind* const windowed = windowed_kind(model);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    const LayerSpec& layer = model.layer(i);
    routed.push_back(layer.has_experts() ? limit(model.moe_of(layer).gate_limit) : HubJson(nullptr));
    others.push_back(
        limit(layer.has_experts() ? model.moe_of(layer).shared_limit : model.mlp_of(layer).gate_limit));
    if (&model.attention_of(layer) == windowed)
      heads[std::to_string(i)] = {{"num_attention_heads", windowed->heads}};
  }
  hub["num_attention_heads"] = full_kind(model)->heads;
  if (windowed != nullptr) {
    hub["num_sliding_attention_heads"] = windowed->heads;
    hub["per_layer_config"] = heads;
  }
  hub["query_pre_attn_scalar"] = model.attention().head_dim;
  hub["swiglu_limits"] = routed;
  hub["swiglu_limits_shared"] = others;
  write_expert_layers(model, hub);
  hub["n_routed_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["share_expert_dim"] = model.shared_mlp;
  hub["moe_router_scaling_factor"] = config.get_float("routed_scaling_factor");
}

bool writes_step3(const ModelConfig& model) {
  const AttentionKind& k = model.attention();
  const bool clamps_after = std::ranges::all_of(model.moes, [](const MoeConfig& moe) {
    return (moe.gate_limit == 0 && moe.shared_limit == 0) || moe.gate_clamp == GateClamp::after;
  });
  return has_two_kinds(model) && full_kind(model) != nullptr && k.gate_of_heads && !k.gate_softplus &&
         k.qk_norm && !k.bias && model.shared_experts > 0 && model.moe().score == RouterScore::sigmoid &&
         model.moe().normalise && model.moe().groups <= 1 && clamps_after;
}

using nlohmann::json;

constexpr GgufName kStep3Names[] = {
    {"attn_gate.weight", "self_attn.g_proj.weight"},
    {"ffn_gate_inp.weight", "moe.gate.weight"},
    {"exp_probs_b.bias", "moe.router_bias"},
    {"ffn_gate_shexp.weight", "share_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "share_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "share_expert.down_proj.weight"},
};

// Limits of gates, one a layer.
json limits_of(const GgufMetadata& metadata, const char* key, const json& config) {
  const auto layers = config.at("num_hidden_layers").get<std::int64_t>();
  return metadata.has(key) ? metadata.numbers(key, layers)
                           : std::vector<double>(static_cast<std::size_t>(layers), 0);
}

// A file says nothing of the rotated share: llama.cpp rotates half of a head where there is no window.
void add_step35(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  add_layer_types(metadata.flags("attention.sliding_window_pattern", layers), config);
  const std::int64_t heads = config["num_attention_heads"].get<std::int64_t>(),
                     full = number_of_kind(metadata, "attention.head_count", config, kFullLayer, heads);
  config["num_attention_heads"] = full;
  config["num_sliding_attention_heads"] =
      number_of_kind(metadata, "attention.head_count", config, kWindowedLayer, full);
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  const std::int64_t rotated =
      metadata.integer("rope.dimension_count", config["head_dim"].get<std::int64_t>());
  add_rotations(metadata, rotated / 2, rotated, config);
  add_layers_with_experts(file, config);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["share_expert_dim"] = metadata.integer("expert_shared_feed_forward_length");
  config["moe_router_scaling_factor"] = factor_of_weights(metadata);
  config["swiglu_limits"] = limits_of(metadata, "swiglu_clamp_exp", config);
  config["swiglu_limits_shared"] = limits_of(metadata, "swiglu_clamp_shexp", config);
  // Tensors tell which layers have experts.
  for (const char* key : {"leading_dense_block_count", "moe_every_n_layers"}) metadata.integer(key, 0);
}

constexpr GgufArchitecture kStep3Gguf[] = {
    {.name = "step35",
     .type = "step3p5",
     .tensors = kStep3Names,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .norms_plus_one = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_step35},
};

}  // namespace

const ModelFamily kStep3p5{.type = "step3p5",
                           .outer_type = "step3p7",
                           .architecture = "Step3p5ForCausalLM",
                           .block = &kStep3Block,
                           .tensors = kStep3Tensors,
                           .fused = kStep3Fused,
                           .other_names = kStep3OtherNames,
                           .scales_sum = true,
                           .fields = {.read = kStep3Read,
                                      .refused = kStep3Refused,
                                      .unused = kStep3Unused,
                                      .more = {&kGroupedFields, &kNamesOfExperts}},
                           .gguf = kStep3Gguf,
                           .read = read_step3,
                           .write = write_step3,
                           .writes = writes_step3,
                           .restate = restate_router_bias};

}  // namespace switchyard
