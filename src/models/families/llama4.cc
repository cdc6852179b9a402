// The text decoder of Llama 4. Most layers rotate and attend within chunks,
// the others do neither. Some layers or all have experts, with a shared
// expert. Gate and up of all experts are one fused tensor, [in, out].
//
// A layer:
//   q, k, v = W n(x). Rotated layers: rope of neighbours, q and k over their rms where use_qk_norm,
//     keys of the query's
//   chunk. The others: q · (1 + scale·log(1 + floor((position + 1) / floor_scale))),
//     all keys before the query.
//   h = x + Wo softmax(q·k · head_dim^-1/2) v
//   y = h + MLP(n(h)) in dense layers; else, m = n(h), the K largest of t = G m, w = sigmoid(t):
//   y = h + S(m) + sum of E[e](w[e]·m), each of E and S an MLP of silu
#include <fmt/format.h>

#include <algorithm>

#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kLlama4Block{.name = "llama4",
                                    .experts = true,
                                    .interleaved_experts = true,
                                    .unrotated_layers = true,
                                    .interleaved_rotation = true,
                                    .unit_qk_norm = true,
                                    .scaled_scores = true,
                                    .weights_on_inputs = true};

constexpr TensorRule kLlama4Tensors[] = {
    {"mlp.wi_0", "feed_forward.gate_proj.weight"},
    {"mlp.wi_1", "feed_forward.up_proj.weight"},
    {"mlp.wo", "feed_forward.down_proj.weight"},
    {"moe.gate", "feed_forward.router.weight"},
    {"moe.wi_0", "feed_forward.experts.{}.gate_proj.weight"},
    {"moe.wi_1", "feed_forward.experts.{}.up_proj.weight"},
    {"moe.wo", "feed_forward.experts.{}.down_proj.weight"},
    {"moe.shared.wi_0", "feed_forward.shared_expert.gate_proj.weight"},
    {"moe.shared.wi_1", "feed_forward.shared_expert.up_proj.weight"},
    {"moe.shared.wo", "feed_forward.shared_expert.down_proj.weight"},
};

constexpr std::string_view kLlama4GateAndUp[] = {"feed_forward.experts.{}.gate_proj.weight",
                                                 "feed_forward.experts.{}.up_proj.weight"},
                           kLlama4Down[] = {"feed_forward.experts.{}.down_proj.weight"};
constexpr FusedRule kLlama4Fused[] = {
    {"feed_forward.experts.gate_up_proj", kLlama4GateAndUp, false, /*transposed=*/true},
    {"feed_forward.experts.down_proj", kLlama4Down, false, /*transposed=*/true},
};

// Which layers rotate. `no_rope_layers` has a 1 for a layer that does; files that leave it to the interval
// have none, or an empty list.
std::vector<bool> rotated_layers(const HubConfig& hub) {
  constexpr const char* kList = "no_rope_layers";
  constexpr std::int64_t kUsualInterval = 4;
  const std::int64_t layers = hub.positive("num_hidden_layers");
  std::vector<bool> rotated;
  if (!hub.has(kList) || hub.at(kList) == json::array()) {
    const std::int64_t interval =
        hub.has("no_rope_layer_interval") ? hub.positive("no_rope_layer_interval") : kUsualInterval;
    for (std::int64_t i = 0; i < layers; ++i) rotated.push_back((i + 1) % interval != 0);
    return rotated;
  }
  for (const json& rotates : list_of_layers(hub, kList, "0 or 1")) {
    if (rotates != 0 && rotates != 1) hub.wrong(kList, fmt::format("0 or 1 for each of {} layers", layers));
    rotated.push_back(rotates == 1);
  }
  return rotated;
}

// Writes the unrotated layers as an interval if they are regular, which is how the reference states them.
void read_unrotated_layers(const std::vector<bool>& rotated, ConfigKeys& keys) {
  const std::int64_t layers = std::ssize(rotated);
  const std::int64_t interval = std::find(rotated.begin(), rotated.end(), false) - rotated.begin() + 1;
  json unrotated = json::array();
  bool regular = true;
  for (std::int64_t i = 0; i < layers; ++i) {
    if (!rotated[static_cast<std::size_t>(i)]) unrotated.push_back(i);
    regular = regular && rotated[static_cast<std::size_t>(i)] == ((i + 1) % interval != 0);
  }
  keys["nope_layer_interval"] = unrotated.empty() || !regular ? -1 : interval;
  if (!regular) keys["unrotated_layers"] = unrotated;
}

// layer_types may say again which layers have chunks: those that rotate.
void check_layer_types(const HubConfig& hub, const std::vector<bool>& rotates, bool chunks) {
  if (!hub.has("layer_types")) return;
  const json chunked = layers_that_are(hub, "layer_types", "chunked_attention", "full_attention");
  json rotated = json::array();
  for (std::size_t i = 0; chunks && i < rotates.size(); ++i) {
    if (rotates[i]) rotated.push_back(i);
  }
  if (chunked != rotated) hub.wrong("layer_types", "chunked_attention for the layers with rotation alone");
}

void read_llama4_experts(const HubConfig& hub, ConfigKeys& keys) {
  const std::int64_t layers = hub.positive("num_hidden_layers"),
                     step =
                         hub.has("interleave_moe_layer_step") ? hub.positive("interleave_moe_layer_step") : 1;
  keys["num_experts"] = hub.has("num_local_experts") ? hub.positive("num_local_experts") : 16;
  keys["num_experts_per_tok"] = hub.has("num_experts_per_tok") ? hub.positive("num_experts_per_tok") : 1;
  keys["shared_experts"] = 1;
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["base_mlp_dim"] = hub.positive("intermediate_size_mlp");
  json regular = json::array();
  for (std::int64_t i = step - 1; i < layers; i += step) regular.push_back(i);
  const json listed = hub.has("moe_layers") ? hub.at("moe_layers") : regular;
  if (!listed.is_array() || listed.empty())
    hub.wrong(hub.has("moe_layers") ? "moe_layers" : "interleave_moe_layer_step",
              "at least one layer with experts");
  for (const json& layer : listed) {
    if (!layer.is_number_integer() || layer < 0 || layer >= layers)
      hub.wrong("moe_layers", "numbers of layers, from 0 on");
  }
  if (listed == regular)
    keys["interleave_moe_layer_step"] = step;
  else
    keys["moe_layers"] = listed;
}

// A number above 0 means true in files that were published first.
bool grows_queries(const HubConfig& hub) {
  constexpr const char* kKey = "attn_temperature_tuning";
  return hub.has(kKey) && hub.at(kKey).is_number_integer() ? hub.integer(kKey) > 0 : hub.flag(kKey, true);
}

constexpr std::string_view kLlama4Read[] = {"use_qk_norm",
                                            "no_rope_layers",
                                            "no_rope_layer_interval",
                                            "attention_chunk_size",
                                            "attn_temperature_tuning",
                                            "attn_scale",
                                            "floor_scale",
                                            "num_local_experts",
                                            "num_experts_per_tok",
                                            "intermediate_size_mlp",
                                            "interleave_moe_layer_step",
                                            "moe_layers"};
constexpr FixedField kLlama4Refused[] = {{"use_sliding_window", "false"}};
constexpr std::string_view kLlama4Unused[] = {"for_llm_compressor"};

void read_llama4(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 500000}, keys);
  constexpr std::int64_t kUsualHeadDim = 128;
  read_grouped_attention(
      hub, {.head_dim = kUsualHeadDim, .qk_norm = hub.flag("use_qk_norm", true), .biases = true}, keys);
  const std::vector<bool> rotated = rotated_layers(hub);
  read_unrotated_layers(rotated, keys);
  constexpr std::int64_t kUsualChunk = 8192;  // null: none
  const std::int64_t chunk = hub.has("attention_chunk_size")       ? hub.positive("attention_chunk_size")
                             : hub.is_null("attention_chunk_size") ? 0
                                                                   : kUsualChunk;
  check_layer_types(hub, rotated, chunk > 0);
  keys["chunk_attn_window_size"] = chunk;
  keys["sliding_window_size"] = 0;
  keys["temperature_tuning"] = grows_queries(hub);
  if (grows_queries(hub)) {
    keys["temperature_tuning_scale"] = hub.number("attn_scale", 0.1);
    if (hub.number("attn_scale", 0.1) <= 0) hub.wrong("attn_scale", "more than 0");
    keys["temperature_tuning_floor_scale"] = hub.has("floor_scale") ? hub.positive("floor_scale") : 8192;
  }
  read_llama4_experts(hub, keys);
}

void write_llama4(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  HubJson rotates = HubJson::array(), kinds = HubJson::array();
  for (const LayerSpec& layer : model.layer_specs) {
    rotates.push_back(model.attention_of(layer).rotated ? 1 : 0);
    kinds.push_back(model.seen_in(layer).chunk == 0 ? "full_attention" : "chunked_attention");
  }
  hub["no_rope_layers"] = rotates;
  hub["layer_types"] = kinds;
  hub["attention_chunk_size"] = model.chunk() > 0 ? HubJson(model.chunk()) : HubJson(nullptr);
  hub["use_qk_norm"] = model.attention().qk_unit_norm;
  hub["attn_temperature_tuning"] = config.get_bool("temperature_tuning");
  if (config.get_bool("temperature_tuning")) {
    hub["attn_scale"] = config.get_float("temperature_tuning_scale");
    hub["floor_scale"] = config.get_int("temperature_tuning_floor_scale");
  }
  hub["intermediate_size"] = model.moe_mlp;
  hub["intermediate_size_mlp"] = model.mlp().width;
  hub["num_local_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["interleave_moe_layer_step"] = config.get_int("interleave_moe_layer_step");
  hub["moe_layers"] = model.moe_layers();
}

bool writes_llama4(const ModelConfig& model) {
  return model.shared_experts == 1;
}

using nlohmann::json;

constexpr GgufExperts kExpertsOfLlama4{.begin = "feed_forward.experts."};
constexpr GgufName kLlama4Names[] = {
    {"ffn_gate.weight", "feed_forward.gate_proj.weight"},
    {"ffn_up.weight", "feed_forward.up_proj.weight"},
    {"ffn_down.weight", "feed_forward.down_proj.weight"},
    {"ffn_gate_inp.weight", "feed_forward.router.weight"},
    {"ffn_gate_shexp.weight", "feed_forward.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "feed_forward.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "feed_forward.shared_expert.down_proj.weight"},
};

// A file does not state chunks, layers without rotation, the growth of queries, and whether queries and keys
// have a norm. The published models have these numbers in common, and llama.cpp has them in its code.
void add_llama4(const GgufFile&, const GgufMetadata& metadata, json& config) {
  constexpr std::int64_t kChunk = 8192, kExpertsWithoutNorm = 128, kInterval = 4;
  if (metadata.integer("attention.sliding_window_pattern", kInterval) != kInterval)
    metadata.wrong("attention.sliding_window_pattern", fmt::format("{}", kInterval));
  const std::int64_t experts = metadata.integer("expert_count"),
                     layers = config["num_hidden_layers"].get<std::int64_t>(),
                     window = metadata.integer("attention.sliding_window", kChunk);
  if (window != 0 && window != kChunk)
    metadata.wrong("attention.sliding_window", fmt::format("0 (none) or {}", kChunk));
  const bool chunks = window != 0;
  config["num_local_experts"] = experts;
  config["intermediate_size_mlp"] = config["intermediate_size"];
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["interleave_moe_layer_step"] = metadata.integer("interleave_moe_layer_step");
  config["use_qk_norm"] = experts != kExpertsWithoutNorm;
  config["attn_temperature_tuning"] = chunks;
  if (chunks) config["attention_chunk_size"] = kChunk;
  json rotates = json::array();
  for (std::int64_t i = 0; i < layers; ++i) rotates.push_back(chunks && (i + 1) % kInterval == 0 ? 0 : 1);
  config["no_rope_layers"] = rotates;
}

constexpr GgufArchitecture kLlama4Gguf[] = {
    {.name = "llama4",
     .type = "llama4_text",
     .tensors = kLlama4Names,
     .experts = kExpertsOfLlama4,
     .gating = kGgufSigmoid,
     .rope_factors = true,
     .add = add_llama4},
};

}  // namespace

const ModelFamily kLlama4{.type = "llama4_text",
                          .outer_type = "llama4",
                          .architecture = "Llama4ForCausalLM",
                          .block = &kLlama4Block,
                          .tensors = kLlama4Tensors,
                          .fused = kLlama4Fused,
                          .root = {"language_model.", ""},
                          .fields = {.read = kLlama4Read,
                                     .refused = kLlama4Refused,
                                     .unused = kLlama4Unused,
                                     .more = {&kGroupedFields, &kNamesOfExperts}},
                          .gguf = kLlama4Gguf,
                          .read = read_llama4,
                          .write = write_llama4,
                          .writes = writes_llama4};

}  // namespace switchyard
