// Qwen2 and Qwen2.5, dense and with experts. Queries, keys and values have biases, the output has none.
// Models with experts have a gated shared expert.
//
// A layer:
//   q, k, v = W n(x) + b; rope; h = x + Wo softmax(q·k · head_dim^-1/2) v, no bias in Wo;
//     dense: y = h + MLP(n(h))
//   with experts, m = n(h): p = softmax(G m); w = the K largest p, over their sum where norm_topk_prob
//   y = h + sum of w[e]·E[e](m) + sigmoid(g·m) · S(m)
#include <algorithm>

#include "models/families/gguf_settings.h"
#include "models/families/qwen3.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kQwen2Block{.name = "qwen2", .no_output_bias = true, .scaled_scores = true};
constexpr DecoderBlock kQwen2MoeBlock{.name = "qwen2_moe",
                                      .no_output_bias = true,
                                      .experts = true,
                                      .scaled_scores = true,
                                      .softmax_over_all = true,
                                      .gated_shared_experts = true};

constexpr TensorRule kQwen2MoeTensors[] = {
    {"moe.shared.wi_0", "mlp.shared_expert.gate_proj.weight"},
    {"moe.shared.wi_1", "mlp.shared_expert.up_proj.weight"},
    {"moe.shared.wo", "mlp.shared_expert.down_proj.weight"},
    {"moe.shared.gate", "mlp.shared_expert_gate.weight"},
};

constexpr std::string_view kQwen2Unused[] = {"attention_bias"};
constexpr FixedField kQwen2Refused[] = {{"use_mrope", "false"}};
constexpr std::string_view kQwen2Read[] = {"head_dim"};
constexpr HubFields kAttentionOfQwen2Fields{
    .read = kQwen2Read, .refused = kQwen2Refused, .unused = kQwen2Unused, .more = {&kWindowsOfQwen3Fields}};
constexpr std::string_view kQwen2MoeRead[] = {"qkv_bias", "shared_expert_intermediate_size"};

// Their files state no attention_bias: what the class has counts.
void read_attention_of_qwen2(const HubConfig& hub, bool biases, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 10000}, keys);
  read_grouped_attention(hub, {.biases = true}, keys);
  keys["attention_bias"] = biases;
  keys["attention_output_bias"] = false;
}

void read_qwen2(const HubConfig& hub, ConfigKeys& keys) {
  read_attention_of_qwen2(hub, true, keys);
  read_windows_of_qwen3(hub, keys);
}

void write_qwen2(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_windows_of_qwen3(model, hub);
  hub.erase("attention_bias");
}

bool has_attention_of_qwen2(const ModelConfig& model) {
  return !model.attention().qk_norm && !model.attention().out_bias;
}

bool writes_qwen2(const ModelConfig& model) {
  return has_attention_of_qwen2(model) && model.attention().bias;
}

// Without layer_types every other layer before max_window_layers has the window,
// the first among them.
void read_windows_of_qwen2_moe(const HubConfig& hub, ConfigKeys& keys) {
  if (window_of_qwen3(hub) == 0 || hub.has("layer_types")) return read_windows_of_qwen3(hub, keys);
  json windowed = json::array();
  constexpr std::int64_t kUsualEnd = 28;
  const std::int64_t end =
      std::min(hub.positive("num_hidden_layers"), hub.integer("max_window_layers", kUsualEnd));
  for (std::int64_t i = 0; i < end; i += 2) windowed.push_back(i);
  keys["sliding_window_size"] = windowed.empty() ? 0 : window_of_qwen3(hub);
  keys["windowed_layers"] = windowed;
}

void read_qwen2_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_attention_of_qwen2(hub, hub.flag("qkv_bias", true), keys);
  read_windows_of_qwen2_moe(hub, keys);
  read_experts_of_qwen3(hub, false, keys);
  keys["shared_experts"] = 1;
  keys["shared_expert_mlp_dim"] = hub.positive("shared_expert_intermediate_size");
}

void write_qwen2_moe(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_qwen2(config, model, hub);
  hub["qkv_bias"] = model.attention().bias;
  write_experts_of_qwen3(model, hub);
  hub["shared_expert_intermediate_size"] = model.shared_mlp;
}

bool writes_qwen2_moe(const ModelConfig& model) {
  return has_attention_of_qwen2(model) && model.shared_experts > 0 && model.moe().experts > 0;
}

using nlohmann::json;

void add_qwen2_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["shared_expert_intermediate_size"] = file.at("blk.0.ffn_down_shexp.weight").shape.back();
  add_experts_of_qwen(file, metadata, config);
}

constexpr GgufArchitecture kQwen2Gguf[] = {
    {.name = "qwen2", .type = "qwen2"},
};
constexpr GgufArchitecture kQwen2MoeGguf[] = {
    {.name = "qwen2moe", .type = "qwen2_moe", .tensors = kGatedSharedNames, .add = add_qwen2_moe},
};

}  // namespace

const ModelFamily kQwen2{.type = "qwen2",
                         .architecture = "Qwen2ForCausalLM",
                         .block = &kQwen2Block,
                         .tensors = {},
                         .fields = {.more = {&kAttentionOfQwen2Fields}},
                         .gguf = kQwen2Gguf,
                         .read = read_qwen2,
                         .write = write_qwen2,
                         .writes = writes_qwen2};
const ModelFamily kQwen2Moe{
    .type = "qwen2_moe",
    .architecture = "Qwen2MoeForCausalLM",
    .block = &kQwen2MoeBlock,
    .tensors = kQwen2MoeTensors,
    .fused = kExpertsInMemory,
    .fields = {.read = kQwen2MoeRead, .more = {&kAttentionOfQwen2Fields, &kExpertsOfQwen3Fields}},
    .gguf = kQwen2MoeGguf,
    .read = read_qwen2_moe,
    .write = write_qwen2_moe,
    .writes = writes_qwen2_moe,
    .restate = restate_experts_of_qwen3};

}  // namespace switchyard
