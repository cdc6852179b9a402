// OLMoE: experts in every layer, weighted by a softmax over all of them; norms over all heads of q and of k
// together. Some models clamp queries, keys and values (clip_qkv).
//
// A layer:
//   q, k, v = W n(x) within +-clip_qkv; q and k normed over all heads together; rope;
//     h = x + Wo softmax(q·k·d^-1/2) v
//   p = softmax(G m), m = n(h); w = the K largest p, over their sum where norm_topk_prob
//   y = h + sum of w[e]·E[e](m)
#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kOlmoeBlock{.name = "olmoe", .experts = true};

constexpr std::string_view kOlmoeRead[] = {"clip_qkv", "num_experts", "num_experts_per_tok",
                                           "norm_topk_prob"};
constexpr FixedField kOlmoeRefused[] = {{"use_sliding_window", "false"}};

void read_olmoe(const HubConfig& hub, ConfigKeys& keys) {
  if (hub.has("clip_qkv") && !(hub.number("clip_qkv") > 0)) hub.wrong("clip_qkv", "null, or more than 0");
  keys["clip_qkv"] = hub.number("clip_qkv", 0);
  read_rope(hub, {.usual_theta = 10000}, keys);
  read_grouped_attention(hub, {.qk_norm = true, .biases = true}, keys);
  keys["qk_norm_over"] = "width";
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["num_experts"] = hub.positive("num_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["routed_score_func"] = "softmax";
  keys["norm_topk_prob"] = hub.flag("norm_topk_prob", false);
}

void write_olmoe(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["norm_topk_prob"] = model.moe().normalise;
  hub["clip_qkv"] = model.attention().qkv_clip > 0 ? HubJson(config.get_float("clip_qkv")) : HubJson(nullptr);
}

bool writes_olmoe(const ModelConfig&) {
  return true;
}

using nlohmann::json;

void add_olmoe(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["num_experts"] = metadata.integer("expert_count");
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  const double clamp = metadata.number("attention.clamp_kqv", 0);  // 0 is as good as none
  if (clamp < 0) metadata.wrong("attention.clamp_kqv", "0 (none) or more");
  if (clamp > 0) config["clip_qkv"] = clamp;
}

constexpr GgufArchitecture kOlmoeGguf[] = {
    {.name = "olmoe", .type = "olmoe", .add = add_olmoe},
};

}  // namespace

const ModelFamily kOlmoe{
    .type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .block = &kOlmoeBlock,
    .tensors = {},
    .fused = kExpertsInMemory,
    .fields = {.read = kOlmoeRead, .refused = kOlmoeRefused, .more = {&kGroupedFields, &kNamesOfExperts}},
    .gguf = kOlmoeGguf,
    .read = read_olmoe,
    .write = write_olmoe,
    .writes = writes_olmoe};

}  // namespace switchyard
