// Qwen3, dense and with experts: norms of queries and keys.
#include "models/families/common.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kQwen3Block{.name = "qwen3", .as_qwen3 = true};
constexpr DecoderBlock kQwen3MoeBlock{.name = "qwen3_moe", .experts = true, .as_qwen3 = true};

using nlohmann::json;

void read_qwen3(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualHeadDim = 128;  // whatever the width
  read_rope(hub, {}, keys);
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .qk_norm = true, .biases = true}, keys);
}

void write_qwen3(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["use_sliding_window"] = false;
}

void read_qwen3_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_qwen3(hub, keys);
  if (hub.integer("decoder_sparse_step", 1) != 1) hub.wrong("decoder_sparse_step", "1");
  if (hub.has("mlp_only_layers") && hub.at("mlp_only_layers") != json::array()) {
    hub.wrong("mlp_only_layers", "[]; dense layers between MoE layers are not supported");
  }
  keys["num_experts"] = hub.positive(hub.has("num_experts") ? "num_experts" : "num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["base_mlp_dim"] =
      keys["base_moe_mlp_dim"];  // no layer has the dense width; the reference states it like this
  keys["norm_topk_prob"] = hub.flag("norm_topk_prob", false);
}

void write_qwen3_moe(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_qwen3(config, model, hub);
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_experts_per_tok"] = model.moe.slots;
  hub["num_experts"] = model.moe.experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = model.moe.normalise;
  hub["decoder_sparse_step"] = 1;
  hub["mlp_only_layers"] = HubJson::array();
}

bool writes_qwen3(const ModelConfig&) {
  return true;
}

void restate_qwen3(const ModelConfig& model, Restated& restated) {
  if (!model.qk_norm) restated.keys["decoder_block"] = "llama2";
}

// compat=maxtext weighs by a softmax over the selected, which is a normalised softmax over all.
void restate_qwen3_moe(const ModelConfig& model, Restated& restated) {
  if (model.compat && model.moe.softmax_over_selected) restated.keys["norm_topk_prob"] = true;
}

}  // namespace

// The reference's own: no Hugging Face model is like it.
const DecoderBlock kQwen3CustomMoeBlock{
    .name = "qwen3_custom_moe", .experts = true, .latent_experts = true, .as_qwen3 = true};

const ModelFamily kQwen3{.type = "qwen3",
                         .architecture = "Qwen3ForCausalLM",
                         .block = &kQwen3Block,
                         .tensors = {},
                         .read = read_qwen3,
                         .write = write_qwen3,
                         .writes = writes_qwen3,
                         .restate = restate_qwen3};
const ModelFamily kQwen3Moe{.type = "qwen3_moe",
                            .architecture = "Qwen3MoeForCausalLM",
                            .block = &kQwen3MoeBlock,
                            .tensors = {},
                            .read = read_qwen3_moe,
                            .write = write_qwen3_moe,
                            .writes = writes_qwen3,
                            .restate = restate_qwen3_moe};

}  // namespace switchyard
