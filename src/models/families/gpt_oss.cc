// gpt-oss: windows in every other layer, sinks, biases everywhere, clamped gates in the experts. Gate and up
// of all experts are one tensor, columns in turns.
//
// A layer:
//   q, k, v = W n(x) + b; rope; h = x + Wo (softmax over [q·k · head_dim^-1/2, sink of the head],
//     the sink's weight
//   dropped) v + b; every other layer sees the last sliding_window keys
//   t = G n(h) + b; the K largest t; w = softmax over these
//   E[e](m) = W2 (g · sigmoid(1.702 g) · (u + 1)) + b, [g, u] = W1 m + b, g at most limit, u within +-limit
//   y = h + sum of w[e]·E[e](n(h))
#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kGptOssBlock{.name = "gpt_oss",
                                    .experts = true,
                                    .alternating_windows = true,
                                    .scaled_scores = true,
                                    .clamped_gates = true,
                                    .logit_bias = true};

constexpr TensorRule kGptOssTensors[] = {
    {"attention.sinks", "self_attn.sinks", TensorForm::vector},
    {"moe.gate", "mlp.router.weight"},
    {"moe.logit_bias", "mlp.router.bias", TensorForm::vector},
    {"moe.wi_0_bias", "mlp.experts.gate_proj_bias", TensorForm::table},
    {"moe.wi_1_bias", "mlp.experts.up_proj_bias", TensorForm::table},
    {"moe.wo_bias", "mlp.experts.down_proj_bias", TensorForm::table},
};

constexpr std::string_view kGateAndUp[] = {"mlp.experts.{}.gate_proj.weight",
                                           "mlp.experts.{}.up_proj.weight"},
                           kDown[] = {"mlp.experts.{}.down_proj.weight"},
                           kGateAndUpBiases[] = {"mlp.experts.gate_proj_bias", "mlp.experts.up_proj_bias"};
constexpr FusedRule kGptOssFused[] = {
    {"mlp.experts.gate_up_proj", kGateAndUp, /*in_turns=*/true, /*transposed=*/true},
    {"mlp.experts.down_proj", kDown, false, /*transposed=*/true},
    {"mlp.experts.gate_up_proj_bias", kGateAndUpBiases, /*in_turns=*/true},
};

constexpr std::string_view kGptOssRead[] = {"sliding_window", "num_local_experts", "num_experts_per_tok",
                                            "swiglu_limit", "swiglu_alpha"};
constexpr std::string_view kGptOssUnused[] = {"experts_per_token", "initial_context_length"};

nlohmann::json usual_rotation() {
  return {{"rope_type", "yarn"}, {"factor", 32},      {"beta_fast", 32},
          {"beta_slow", 1},      {"truncate", false}, {"original_max_position_embeddings", 4096}};
}

void read_gpt_oss(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 150000, .usual = usual_rotation()}, keys);
  constexpr std::int64_t kUsualHeadDim = 64;
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .biases = true}, keys);
  keys["attention_sink"] = true;
  keys["sliding_window_size"] = hub.positive("sliding_window");
  read_windowed_layers(hub, keys);
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["num_experts"] = hub.positive("num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["routed_bias"] = true;
  keys["mlp_bias"] = true;
  keys["mlp_activations"] = {"sigmoid", "linear"};
  const double limit = hub.number("swiglu_limit", 7.0);
  if (limit <= 0) hub.wrong("swiglu_limit", "more than 0");
  keys["mlp_activations_limit"] = limit;
  keys["mlp_activations_alpha"] = hub.number("swiglu_alpha", 1.702);
}

void write_gpt_oss(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["layer_types"] = layer_types(model);
  hub["sliding_window"] = model.window();
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_local_experts"] = model.moe().experts;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["swiglu_limit"] = model.moe().gate_limit;
  hub["swiglu_alpha"] = model.moe().gate_alpha;
}

bool writes_gpt_oss(const ModelConfig&) {
  return true;
}

using nlohmann::json;

// The experts' biases are [experts, outputs].
constexpr GgufName kGptOssNames[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
};

void add_gpt_oss(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["num_local_experts"] = metadata.integer("expert_count");
  config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["sliding_window"] = metadata.integer("attention.sliding_window");
  config["rope_parameters"]["truncate"] = false;  // of all models of this architecture
  // A flag for each layer with a window, or a period, of whose layers the last has none; 0: all have one.
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const std::int64_t layers = config["num_hidden_layers"].get<std::int64_t>(),
                     period = metadata.is_list(kPattern) ? 0 : metadata.integer(kPattern, 2);
  std::vector<bool> windows(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i)
    windows[static_cast<std::size_t>(i)] = period == 0 || i % period < period - 1;
  if (metadata.is_list(kPattern)) windows = metadata.flags(kPattern, layers);
  for (const bool window : windows)
    config["layer_types"].push_back(window ? "sliding_attention" : "full_attention");
}

constexpr GgufArchitecture kGptOssGguf[] = {
    {.name = "gpt-oss",
     .type = "gpt_oss",
     .tensors = kGptOssNames,
     .gating = kGgufSoftmaxOfChosen,
     .divides_weights = true,
     .add = add_gpt_oss},
};

}  // namespace

const ModelFamily kGptOss{
    .type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .block = &kGptOssBlock,
    .tensors = kGptOssTensors,
    .fused = kGptOssFused,
    .fields = {.read = kGptOssRead, .unused = kGptOssUnused, .more = {&kGroupedFields, &kNamesOfExperts}},
    .gguf = kGptOssGguf,
    .read = read_gpt_oss,
    .write = write_gpt_oss,
    .writes = writes_gpt_oss};

}  // namespace switchyard
