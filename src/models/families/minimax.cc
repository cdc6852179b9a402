// MiniMax-M2: experts in every layer, chosen by a sigmoid and a bias; norms over all heads of q and of k
// together; part of each head is rotated.
#include "models/families/common.h"

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

// What published files state of parts that this engine has in one way only.
void refuse_other_minimax(const HubConfig& hub) {
  if (hub.text("scoring_func", "sigmoid") != "sigmoid") hub.wrong("scoring_func", "sigmoid");
  if (!hub.flag("use_qk_norm", true)) hub.wrong("use_qk_norm", "true");
  if (hub.text("qk_norm_type", "per_layer") != "per_layer") hub.wrong("qk_norm_type", "per_layer");
  if (!hub.flag("use_routing_bias", true)) hub.wrong("use_routing_bias", "true");
  if (hub.integer("shared_intermediate_size", 0) != 0) hub.wrong("shared_intermediate_size", "0");
  if (!hub.has("attn_type_list")) return;
  for (const nlohmann::json& kind : hub.at("attn_type_list")) {
    if (kind != 1) hub.wrong("attn_type_list", "1 (full attention) in every layer");
  }
}

void read_minimax_m2(const HubConfig& hub, ConfigKeys& keys) {
  refuse_other_minimax(hub);
  read_rope(hub, {.usual_share = 1}, keys);
  constexpr std::int64_t kUsualHeadDim = 128;
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .qk_norm = true}, keys);
  keys["qk_norm_over"] = "width";
  // Published files state the rotated width; transformers 5 its share of a head.
  if (hub.has("rotary_dim")) {
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
  hub["num_local_experts"] = model.moe.experts;
  hub["num_experts_per_tok"] = model.moe.slots;
  hub["scoring_func"] = "sigmoid";
  hub["use_qk_norm"] = true;
  hub["use_routing_bias"] = true;
  hub["rotary_dim"] = model.rope_dim;
  // A class of transformers 5 reads the share alone.
  hub["partial_rotary_factor"] = model.rope.share;
}

bool writes_minimax_m2(const ModelConfig&) {
  return true;
}

}  // namespace

const ModelFamily kMinimaxM2{.type = "minimax_m2",
                             .architecture = "MiniMaxM2ForCausalLM",
                             .block = &kMinimaxBlock,
                             .tensors = kMinimaxTensors,
                             .read = read_minimax_m2,
                             .write = write_minimax_m2,
                             .writes = writes_minimax_m2};

}  // namespace switchyard
