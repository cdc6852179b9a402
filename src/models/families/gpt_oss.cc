// gpt-oss: windows in every other layer, sinks, biases everywhere, clamped gates in the experts. Gate and up of all
// experts are one tensor, columns in turns.
#include "models/families/common.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kGptOssBlock{.name = "gpt_oss", .experts = true, .scaled_scores = true, .as_gpt_oss = true};

constexpr TensorRule kGptOssTensors[] = {
    {"moe.gate", "mlp.router.weight"},
    {"moe.logit_bias", "mlp.router.bias", TensorForm::vector},
    {"moe.wi_0", "mlp.experts.gate_up_proj", TensorForm::even_columns},
    {"moe.wi_1", "mlp.experts.gate_up_proj", TensorForm::odd_columns},
    {"moe.wo", "mlp.experts.down_proj", TensorForm::table},
    {"moe.wi_0_bias", "mlp.experts.gate_up_proj_bias", TensorForm::even_columns},
    {"moe.wi_1_bias", "mlp.experts.gate_up_proj_bias", TensorForm::odd_columns},
    {"moe.wo_bias", "mlp.experts.down_proj_bias", TensorForm::table},
};

void read_gpt_oss(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {}, keys);
  constexpr std::int64_t kUsualHeadDim = 64;
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .biases = true}, keys);
  keys["attention_sink"] = true;
  keys["sliding_window_size"] = hub.positive("sliding_window");
  if (hub.has("layer_types"))
    read_windowed_layers(hub, keys);
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["num_experts"] = hub.positive("num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["routed_bias"] = true;
  keys["mlp_bias"] = true;
  keys["mlp_activations"] = {"sigmoid", "linear"};
  keys["mlp_activations_limit"] = hub.number("swiglu_limit", 7.0);
  keys["mlp_activations_alpha"] = hub.number("swiglu_alpha", 1.702);
}

void write_gpt_oss(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  HubJson kinds = HubJson::array();
  for (const LayerSpec& layer : model.layer_specs)
    kinds.push_back(layer.windowed ? "sliding_attention" : "full_attention");
  hub["layer_types"] = kinds;
  hub["sliding_window"] = model.window;
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_local_experts"] = model.moe.experts;
  hub["num_experts_per_tok"] = model.moe.slots;
  hub["swiglu_limit"] = model.moe.gate_limit;
  hub["swiglu_alpha"] = model.moe.gate_alpha;
}

bool writes_gpt_oss(const ModelConfig&) {
  return true;
}

}  // namespace

const ModelFamily kGptOss{.type = "gpt_oss",
                          .architecture = "GptOssForCausalLM",
                          .block = &kGptOssBlock,
                          .tensors = kGptOssTensors,
                          .read = read_gpt_oss,
                          .write = write_gpt_oss,
                          .writes = writes_gpt_oss};

}  // namespace switchyard
