// MiniMax-M2: experts in every layer, chosen by a sigmoid and a bias; norms over all heads of q and of k
// together; part of each head is rotated.
//
// A layer:
//   q, k, v = W n(x); q and k normed over all heads together; rope on part of a head;
//     h = x + Wo softmax(q·k·d^-1/2) v
//   s = sigmoid(G m), m = n(h); the K largest s + b; w = s / sum of the chosen s;
//     y = h + sum of w[e]·E[e](m)
#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kMinimaxBlock{.name = "minimax_m2", .experts = true};

constexpr TensorRule kMinimaxTensors[] = {
    {"moe.gate", "block_sparse_moe.gate.weight"},
    {"moe.gate_bias", "block_sparse_moe.e_score_correction_bias", TensorForm::vector},
    {"moe.wi_0", "block_sparse_moe.experts.{}.w1.weight"},
    {"moe.wi_1", "block_sparse_moe.experts.{}.w3.weight"},
    {"moe.wo", "block_sparse_moe.experts.{}.w2.weight"},
};

constexpr std::string_view kMinimaxGateAndUp[] = {"block_sparse_moe.experts.{}.w1.weight",
                                                  "block_sparse_moe.experts.{}.w3.weight"},
                           kMinimaxDown[] = {"block_sparse_moe.experts.{}.w2.weight"},
                           kMinimaxGate[] = {"block_sparse_moe.gate.weight"},
                           kMinimaxBias[] = {"block_sparse_moe.e_score_correction_bias"};
// The tensors that transformers 5 has in memory.
constexpr FusedRule kMinimaxInMemory[] = {
    {.fused = "mlp.experts.gate_up_proj", .parts = kMinimaxGateAndUp, .written = false},
    {.fused = "mlp.experts.down_proj", .parts = kMinimaxDown, .written = false},
    {.fused = "mlp.gate.weight", .parts = kMinimaxGate, .written = false},
    {.fused = "mlp.e_score_correction_bias", .parts = kMinimaxBias, .written = false},
};

constexpr std::string_view kMinimaxRead[] = {"num_local_experts", "num_experts_per_tok", "rotary_dim",
                                             "attn_type_list"};
// Fields of published files that have one value in this engine.
constexpr FixedField kMinimaxRefused[] = {{"attention_bias", "false"},
                                          {"use_sliding_window", "false"},
                                          {"scoring_func", R"("sigmoid")"},
                                          {"use_qk_norm", "true"},
                                          {"qk_norm_type", R"("per_layer")"},
                                          {"use_routing_bias", "true"},
                                          {"shared_intermediate_size", "0"},
                                          {"layernorm_full_attention_beta", "1"},
                                          {"layernorm_linear_attention_beta", "1"},
                                          {"layernorm_mlp_beta", "1"}};
constexpr std::string_view kMinimaxUnused[] = {"mlp_intermediate_size", "mtp_transformer_layers",
                                               "num_mtp_modules", "use_mtp", "shared_moe_mode"};

// Returns whether the file states the rotated share of a head.
bool states_share(const HubConfig& hub) {
  constexpr const char* kShare = "partial_rotary_factor";
  const auto has = [&](const char* rope) {
    return hub.has(rope) && hub.at(rope).is_object() &&
           !hub.at(rope).value(kShare, nlohmann::json()).is_null();
  };
  return hub.has(kShare) || has("rope_parameters") || has("rope_scaling");
}

void read_minimax_m2(const HubConfig& hub, ConfigKeys& keys) {
  check_all_layers(hub, "attn_type_list", 1, "1 (full attention)");
  read_rope(hub, {.usual_share = 1}, keys);
  constexpr std::int64_t kUsualHeadDim = 128;
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .qk_norm = true}, keys);
  keys["qk_norm_over"] = "width";
  // Published files state the rotated width; transformers 5 its share of a head, which counts where both are.
  if (hub.has("rotary_dim") && !states_share(hub)) {
    const std::int64_t width = hub.positive("rotary_dim"), head = keys["head_dim"].get<std::int64_t>();
    if (width > head) hub.wrong("rotary_dim", "at most head_dim");
    keys["partial_rotary_factor"] = static_cast<double>(width) / static_cast<double>(head);
  }
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["num_experts"] = hub.positive("num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["routed_score_func"] = "sigmoid";
  keys["routed_bias"] = true;
  keys["norm_topk_prob"] = true;
}

void write_minimax_m2(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_local_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["scoring_func"] = "sigmoid";
  hub["use_qk_norm"] = true;
  hub["use_routing_bias"] = true;
  hub["rotary_dim"] = model.attention().rope_dim;
  // A class of transformers 5 reads the share alone.
  hub["partial_rotary_factor"] = model.attention().rope.share;
}

bool writes_minimax_m2(const ModelConfig&) {
  return true;
}

using nlohmann::json;

constexpr GgufName kMinimaxNames[] = {
    {"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"},
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias"},
};

void add_minimax(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["num_local_experts"] = metadata.integer("expert_count");
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  add_rotated_share(metadata, config);
}

constexpr GgufArchitecture kMinimaxGguf[] = {
    {.name = "minimax-m2",
     .type = "minimax_m2",
     .tensors = kMinimaxNames,
     .experts = kExpertsOfMixtral,
     .gating = kGgufSigmoid,
     .divides_weights = true,
     .rotates_part = true,
     .add = add_minimax},
};

}  // namespace

const ModelFamily kMinimaxM2{.type = "minimax_m2",
                             .architecture = "MiniMaxM2ForCausalLM",
                             .block = &kMinimaxBlock,
                             .tensors = kMinimaxTensors,
                             .fused = kMinimaxInMemory,
                             .fields = {.read = kMinimaxRead,
                                        .refused = kMinimaxRefused,
                                        .unused = kMinimaxUnused,
                                        .more = {&kGroupedFields, &kNamesOfExperts}},
                             .gguf = kMinimaxGguf,
                             .read = read_minimax_m2,
                             .write = write_minimax_m2,
                             .writes = writes_minimax_m2};

}  // namespace switchyard
