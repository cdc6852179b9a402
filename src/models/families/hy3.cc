// Tencent Hy3 (hy_v3): Qwen3's attention with DeepSeek-V3's router and a shared expert.
//
// A layer:
//   q, k, v = W n(x); q and k normed over a head; rope; h = x + Wo softmax(q·k·d^-1/2) v
//   y = h + MLP(m) in the first dense layers, m = n(h); else with s = sigmoid(G m), the K largest s + b,
//     w = s / sum of the chosen s · factor: y = h + sum of w[e]·E[e](m) + S(m)
#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kHy3Block{.name = "hy_v3", .experts = true};

constexpr TensorRule kHy3Tensors[] = {
    {"moe.gate", "mlp.router.gate.weight"},
    {"moe.gate_bias", "mlp.expert_bias", TensorForm::vector},
    {"moe.shared.wi_0", "mlp.shared_mlp.gate_proj.weight"},
    {"moe.shared.wi_1", "mlp.shared_mlp.up_proj.weight"},
    {"moe.shared.wo", "mlp.shared_mlp.down_proj.weight"},
};

constexpr std::string_view kHy3Read[] = {"num_experts",           "num_experts_per_tok",
                                         "num_shared_experts",    "moe_intermediate_size",
                                         "router_scaling_factor", "mlp_layer_types"};
constexpr FixedField kHy3Refused[] = {{"attention_bias", "false"}, {"use_sliding_window", "false"}};
// How sums are rounded, and whether the router's logits are returned.
constexpr std::string_view kHy3Unused[] = {"enable_moe_fp32_combine", "output_router_logits"};

void read_hy_v3(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {}, keys);
  read_grouped_attention(hub, {.qk_norm = true}, keys);
  read_expert_layers(hub, 1, keys);
  keys["num_experts"] = hub.positive("num_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["shared_experts"] = hub.integer("num_shared_experts", 1);
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["routed_score_func"] = "sigmoid";
  keys["routed_bias"] = true;
  keys["float32_gate_logits"] = true;
  keys["norm_topk_prob"] = true;
  keys["routed_scaling_factor"] = hub.number("router_scaling_factor", 2.826);
}

void write_hy_v3(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_expert_layers(model, hub);
  hub["num_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["num_shared_experts"] = model.shared_experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["router_scaling_factor"] = config.get_float("routed_scaling_factor");
}

bool writes_hy_v3(const ModelConfig& model) {
  return model.attention().qk_norm && model.moe().score == RouterScore::sigmoid && model.moe().normalise &&
         model.moe().groups <= 1;
}

using nlohmann::json;

constexpr GgufName kHy3Names[] = {
    {"ffn_gate_inp.weight", "mlp.router.gate.weight"},
    {"exp_probs_b", "mlp.expert_bias"},
    {"exp_probs_b.bias", "mlp.expert_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_mlp.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_mlp.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_mlp.down_proj.weight"},
};

// Files do not say how many layers come before the first with experts: their tensors do.
void add_hy_v3(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  add_layers_with_experts(file, config);
  const std::int64_t width = metadata.integer("expert_feed_forward_length"),
                     shared = metadata.integer("expert_shared_feed_forward_length", 0);
  if (width == 0 || shared % width != 0)
    metadata.wrong("expert_shared_feed_forward_length", fmt::format("a multiple of {}", width));
  config["num_experts"] = metadata.integer("expert_count");
  config["num_shared_experts"] = shared / width;
  config["moe_intermediate_size"] = width;
  config["router_scaling_factor"] = factor_of_weights(metadata);
}

constexpr GgufArchitecture kHy3Gguf[] = {
    {.name = "hy_v3",
     .type = "hy_v3",
     .tensors = kHy3Names,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .add = add_hy_v3},
};

}  // namespace

const ModelFamily kHy3{.type = "hy_v3",
                       .architecture = "HYV3ForCausalLM",
                       .block = &kHy3Block,
                       .tensors = kHy3Tensors,
                       .fused = kExpertsInMemory,
                       .fields = {.read = kHy3Read,
                                  .refused = kHy3Refused,
                                  .unused = kHy3Unused,
                                  .more = {&kGroupedFields, &kNamesOfExperts}},
                       .gguf = kHy3Gguf,
                       .read = read_hy_v3,
                       .write = write_hy_v3,
                       .writes = writes_hy_v3,
                       .restate = restate_router_bias};

}  // namespace switchyard
