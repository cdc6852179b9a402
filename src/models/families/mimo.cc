// Xiaomi MiMo V2 (mimo_v2_flash): layers with a window have more key heads and sinks; heads of values are
// narrower than of keys; DeepSeek-V3's router without shared experts.
//
// A layer:
//   q, k = W n(x) a head of d, v = W n(x) · c a head of dv; rope on the first dims of q and k
//   h = x + Wo softmax(q·k · d^-1/2) v over all keys, or over a window with a sink a head: one more summand
//     of the softmax's divisor
//   y = h + MLP(n(h)) in dense layers, else DeepSeek-V3's experts (deepseek.cc) without shared ones
#include <fmt/format.h>

#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kMimoBlock{.name = "mimo_v2_flash", .experts = true, .shared_experts = false};

constexpr TensorRule kMimoTensors[] = {
    {"attention.sinks", "self_attn.attention_sink_bias", TensorForm::vector},
};

constexpr std::string_view kMimoRead[] = {"v_head_dim",
                                          "attention_value_scale",
                                          "sliding_window",
                                          "sliding_window_size",
                                          "hybrid_layer_pattern",
                                          "swa_num_key_value_heads",
                                          "swa_num_attention_heads",
                                          "swa_head_dim",
                                          "swa_v_head_dim",
                                          "swa_rope_theta",
                                          "mlp_layer_types",
                                          "moe_layer_freq",
                                          "n_routed_experts",
                                          "num_experts_per_tok",
                                          "moe_intermediate_size",
                                          "norm_topk_prob",
                                          "routed_scaling_factor",
                                          "n_group",
                                          "topk_group"};
constexpr FixedField kMimoRefused[] = {{"scoring_func", R"("sigmoid")"},
                                       {"topk_method", R"("noaux_tc")"},
                                       {"n_shared_experts", "0"},
                                       {"add_swa_attention_sink_bias", "true"},
                                       {"add_full_attention_sink_bias", "false"},
                                       {"rope_scaling", "null"}};
// Published files have the first name.
constexpr OtherName kMimoOtherNames[] = {{"layernorm_epsilon", "rms_norm_eps"}};
// Named for other ways of running the same layers.
constexpr std::string_view kMimoUnused[] = {"attention_chunk_size", "hybrid_block_size"};

// A list of a 0 or 1 for each layer.
std::vector<bool> flags_of_layers(const HubConfig& hub, const char* key) {
  std::vector<bool> flags;
  for (const json& flag : list_of_layers(hub, key, "0 or 1")) {
    if (flag != 0 && flag != 1) hub.wrong(key, "0 or 1 for each layer");
    flags.push_back(flag == 1);
  }
  return flags;
}

std::vector<std::string> words_of_mimo(const HubConfig& hub) {
  if (hub.has("layer_types")) return words_of_layers(hub);
  const auto layers = static_cast<std::size_t>(hub.positive("num_hidden_layers"));
  const bool stated = hub.has("hybrid_layer_pattern");
  const std::vector<bool> pattern =
      stated ? flags_of_layers(hub, "hybrid_layer_pattern") : std::vector<bool>(layers);
  constexpr std::size_t kInterval = 6;  // of a file that states no kinds
  std::vector<std::string> words;
  for (std::size_t i = 0; i < layers; ++i) {
    const bool windowed = stated ? pattern[i] : i != 0 && (i + 1) % kInterval != 0;
    words.emplace_back(windowed ? "sliding_attention" : "full_attention");
  }
  return words;
}

void read_layers_with_experts(const HubConfig& hub, ConfigKeys& keys) {
  if (hub.has("mlp_layer_types") || !hub.has("moe_layer_freq")) return read_expert_layers(hub, 1, keys);
  const std::vector<bool> sparse = flags_of_layers(hub, "moe_layer_freq");
  json numbers = json::array();
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if (sparse[i]) numbers.push_back(i);
  }
  if (numbers.empty()) hub.wrong("moe_layer_freq", "1 for at least one layer");
  keys["moe_layers"] = numbers;
}

void read_mimo(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualWindow = 129, kUsualHead = 192, kUsualValueHead = 128;
  read_grouped_attention(hub, {.head_dim = kUsualHead, .biases = true}, keys);
  keys["attention_output_bias"] = false;
  const auto same = [&](const char* key, const char* other, std::int64_t value) {
    if (hub.has(key) && hub.positive(key) != value) hub.wrong(key, fmt::format("{}, as {}", value, other));
  };
  keys["value_head_dim"] = hub.has("v_head_dim") ? hub.positive("v_head_dim") : kUsualValueHead;
  same("swa_head_dim", "head_dim", keys["head_dim"]);
  same("swa_v_head_dim", "v_head_dim", keys["value_head_dim"]);
  same("swa_num_attention_heads", "num_attention_heads", keys["base_num_query_heads"]);
  const double scale = hub.is_null("attention_value_scale") ? 1 : hub.number("attention_value_scale", 0.707);
  if (!(scale > 0)) hub.wrong("attention_value_scale", "more than 0");
  keys["attention_value_scale"] = scale;
  const double share = hub.number("partial_rotary_factor", 0.334);
  const std::int64_t key_heads = keys["base_num_kv_heads"];
  // The published window counts the keys before a token's own.
  const std::int64_t window = hub.has("sliding_window_size") ? hub.positive("sliding_window_size") + 1
                              : hub.has("sliding_window")    ? hub.positive("sliding_window")
                                                             : kUsualWindow;
  read_two_kinds(hub,
                 {.words = words_of_mimo(hub),
                  .windowed = {{"sliding_window_size", window},
                               {"attention_sink", true},
                               {"base_num_kv_heads", hub.has("swa_num_key_value_heads")
                                                         ? hub.positive("swa_num_key_value_heads")
                                                         : 2 * key_heads}},
                  .full_rope = plain_rotation(hub.number("rope_theta", 5e6), share),
                  .windowed_rope = plain_rotation(hub.number("swa_rope_theta", 1e4), share)},
                 keys);
  read_layers_with_experts(hub, keys);
  json experts = hub.all();
  experts["n_shared_experts"] = 0;
  read_experts_of_deepseek3(HubConfig(experts), {.groups = 1, .scaling = 1}, keys);
}

void write_mimo(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_two_kinds(config, model, hub);
  hub["num_key_value_heads"] = full_kind(model)->kv_heads;
  hub["v_head_dim"] = model.attention().v_dim;
  hub["attention_value_scale"] = model.attention().value_scale;
  write_expert_layers(model, hub);
  write_experts_of_deepseek3(config, model, hub);
  for (const char* key : {"n_shared_experts", "rope_interleave"}) hub.erase(key);
}

// A class builds layers with a window with twice the key heads of others, and sinks.
bool writes_mimo(const ModelConfig& model) {
  const AttentionKind *const full = full_kind(model), *const windowed = windowed_kind(model);
  return model.moe().score == RouterScore::sigmoid && has_two_kinds(model) && full != nullptr &&
         !full->sinks && !full->gate && !full->qk_norm && !full->out_bias &&
         (windowed == nullptr || (windowed->sinks && windowed->kv_heads == 2 * full->kv_heads &&
                                  windowed->heads == full->heads && windowed->head_dim == full->head_dim));
}

using nlohmann::json;

constexpr GgufName kMimoNames[] = {{"attn_sinks.weight", "self_attn.attention_sink_bias"}};

void add_mimo2(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  const auto layers = config["num_hidden_layers"].get<std::int64_t>();
  add_layer_types(metadata.flags("attention.sliding_window_pattern", layers), config);
  const std::int64_t full = number_of_kind(metadata, "attention.head_count_kv", config, kFullLayer, 1);
  config["num_key_value_heads"] = full;
  config["swa_num_key_value_heads"] =
      number_of_kind(metadata, "attention.head_count_kv", config, kWindowedLayer, 2 * full);
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  config["v_head_dim"] = metadata.integer("attention.value_length");
  config["attention_value_scale"] = metadata.number("attention.value_scale", 1);
  const std::int64_t rotated = metadata.integer("rope.dimension_count");
  add_rotations(metadata, rotated, metadata.integer("rope.dimension_count_swa", rotated), config);
  add_layers_with_experts(file, config);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["routed_scaling_factor"] = factor_of_weights(metadata);
  config["n_group"] = metadata.integer("expert_group_count", 1);
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
}

constexpr GgufArchitecture kMimoGguf[] = {
    {.name = "mimo2",
     .type = "mimo_v2_flash",
     .tensors = kMimoNames,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .heads_by_layer = true,
     .add = add_mimo2},
};

}  // namespace

const ModelFamily kMimoV2Flash{.type = "mimo_v2_flash",
                               .architecture = "MiMoV2FlashForCausalLM",
                               .block = &kMimoBlock,
                               .tensors = kMimoTensors,
                               .fused = kExpertsInMemory,
                               .other_names = kMimoOtherNames,
                               .fields = {.read = kMimoRead,
                                          .refused = kMimoRefused,
                                          .unused = kMimoUnused,
                                          .more = {&kGroupedFields, &kNamesOfExperts}},
                               .gguf = kMimoGguf,
                               .read = read_mimo,
                               .write = write_mimo,
                               .writes = writes_mimo,
                               .restate = restate_router_bias};

}  // namespace switchyard
