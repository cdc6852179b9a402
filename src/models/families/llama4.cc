// The text decoder of Llama 4: most layers rotate and attend within chunks, the others do neither. Experts in
// some layers or all, beside one that every token meets. Gate and up of all experts are one tensor, [in,
// out].
#include <algorithm>

#include "models/families/common.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kLlama4Block{
    .name = "llama4", .experts = true, .scaled_scores = true, .as_llama4 = true};

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

// Every how many layers one is without rotation, -1: none is. `no_rope_layers` has a 1 for a layer that
// rotates, in files that leave the interval to say so an empty list.
std::int64_t unrotated_interval(const HubConfig& hub) {
  constexpr const char* kList = "no_rope_layers";
  const std::int64_t layers = hub.positive("num_hidden_layers");
  std::int64_t interval = hub.has("no_rope_layer_interval") ? hub.positive("no_rope_layer_interval") : 4;
  if (hub.has(kList) && hub.at(kList).is_array() && !hub.at(kList).empty()) {
    const json& rotates = hub.at(kList);
    const auto first = std::find(rotates.begin(), rotates.end(), json(0));
    interval = first == rotates.end() ? layers + 1 : first - rotates.begin() + 1;
    bool regular = std::ssize(rotates) == layers;
    for (std::int64_t i = 0; regular && i < layers; ++i)
      regular = rotates[static_cast<std::size_t>(i)] == json((i + 1) % interval == 0 ? 0 : 1);
    if (!regular) hub.wrong(kList, "0 for each n-th of the layers, 1 for all others");
  } else if (hub.has(kList) && !hub.at(kList).is_array()) {
    hub.wrong(kList, "a list");
  }
  return interval > layers ? -1 : interval;
}

// layer_types may say again which layers have chunks: those that rotate.
void check_layer_types(const HubConfig& hub, std::int64_t interval, bool chunks) {
  if (!hub.has("layer_types")) return;
  const json chunked = layers_that_are(hub, "layer_types", "chunked_attention", "full_attention");
  json rotated = json::array();
  for (std::int64_t i = 0; chunks && i < hub.positive("num_hidden_layers"); ++i) {
    if (interval < 0 || (i + 1) % interval != 0) rotated.push_back(i);
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

void read_llama4(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 500000}, keys);
  constexpr std::int64_t kUsualHeadDim = 128;
  read_grouped_attention(
      hub, {.head_dim = kUsualHeadDim, .qk_norm = hub.flag("use_qk_norm", true), .biases = true}, keys);
  const std::int64_t interval = unrotated_interval(hub);
  keys["nope_layer_interval"] = interval;
  const std::int64_t chunk = hub.has("attention_chunk_size") ? hub.positive("attention_chunk_size") : 0;
  check_layer_types(hub, interval, chunk > 0);
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
    rotates.push_back(layer.unrotated ? 0 : 1);
    kinds.push_back(layer.unrotated || model.chunk == 0 ? "full_attention" : "chunked_attention");
  }
  hub["no_rope_layers"] = rotates;
  hub["layer_types"] = kinds;
  hub["attention_chunk_size"] = model.chunk > 0 ? HubJson(model.chunk) : HubJson(nullptr);
  hub["use_qk_norm"] = model.qk_unit_norm;
  hub["attn_temperature_tuning"] = config.get_bool("temperature_tuning");
  if (config.get_bool("temperature_tuning")) {
    hub["attn_scale"] = model.query_growth;
    hub["floor_scale"] = model.query_growth_positions;
  }
  hub["intermediate_size"] = model.moe_mlp;
  hub["intermediate_size_mlp"] = model.mlp;
  hub["num_local_experts"] = model.moe.experts;
  hub["num_experts_per_tok"] = model.moe.slots;
  hub["interleave_moe_layer_step"] = config.get_int("interleave_moe_layer_step");
  hub["moe_layers"] = model.moe_layers();
}

bool writes_llama4(const ModelConfig& model) {
  return model.shared_experts == 1;
}

}  // namespace

const ModelFamily kLlama4{.type = "llama4_text",
                          .outer_type = "llama4",
                          .architecture = "Llama4ForCausalLM",
                          .block = &kLlama4Block,
                          .tensors = kLlama4Tensors,
                          .fused = kLlama4Fused,
                          .root = {"language_model.", ""},
                          .read = read_llama4,
                          .write = write_llama4,
                          .writes = writes_llama4};

}  // namespace switchyard
