// Mixtral: experts in every layer, weighted by a softmax over the selected.
//
// A layer:
//   q, k, v = W n(x); rope; h = x + Wo softmax(q·k · head_dim^-1/2) v,
//     the last window's keys where there is one
//   the K largest of t = G m, m = n(h); w = softmax over these
//   y = h + sum of w[e]·Wo[e](silu(W0[e] m) · W1[e] m)
#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kMixtralBlock{.name = "mixtral", .experts = true, .one_mlp_width = true};

constexpr TensorRule kMixtralTensors[] = {
    {"moe.gate", "block_sparse_moe.gate.weight"},
    {"moe.wi_0", "block_sparse_moe.experts.{}.w1.weight"},
    {"moe.wi_1", "block_sparse_moe.experts.{}.w3.weight"},
    {"moe.wo", "block_sparse_moe.experts.{}.w2.weight"},
};

constexpr std::string_view kMixtralGateAndUp[] = {"block_sparse_moe.experts.{}.w1.weight",
                                                  "block_sparse_moe.experts.{}.w3.weight"},
                           kMixtralDown[] = {"block_sparse_moe.experts.{}.w2.weight"},
                           kMixtralGate[] = {"block_sparse_moe.gate.weight"};
// The tensors that transformers 5 has in memory.
constexpr FusedRule kMixtralInMemory[] = {
    {.fused = "mlp.experts.gate_up_proj", .parts = kMixtralGateAndUp, .written = false},
    {.fused = "mlp.experts.down_proj", .parts = kMixtralDown, .written = false},
    {.fused = "mlp.gate.weight", .parts = kMixtralGate, .written = false},
};

constexpr std::string_view kMixtralRead[] = {"sliding_window", "num_local_experts", "num_experts_per_tok"};
constexpr FixedField kMixtralRefused[] = {{"attention_bias", "false"}, {"use_sliding_window", "false"}};

void read_mixtral(const HubConfig& hub, ConfigKeys& keys) {
  read_window_of_all(hub, 0, keys);
  read_rope(hub, {}, keys);
  read_grouped_attention(hub, {}, keys);
  keys["base_moe_mlp_dim"] = keys["base_mlp_dim"];
  keys["num_experts"] = hub.positive("num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
}

void write_mixtral(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["intermediate_size"] = model.moe_mlp;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["num_local_experts"] = model.moe().experts;
  hub["sliding_window"] = model.window() > 0 ? HubJson(model.window()) : HubJson(nullptr);
}

bool writes_mixtral(const ModelConfig&) {
  return true;
}

void restate_mixtral(const ModelConfig& model, Restated& restated) {
  if (!model.moe().softmax_over_selected) return;
  restated.keys["routed_scaling_factor"] = 1.0;  // it has no say in that softmax
  if (!model.attention().qk_norm) return;
  restated.keys["decoder_block"] = "qwen3_moe";
  restated.keys["norm_topk_prob"] = true;
  restated.same_bits = false;  // the same softmax, divided in another order
}

using nlohmann::json;

constexpr GgufName kMixtralNames[] = {{"ffn_gate_inp.weight", "block_sparse_moe.gate.weight"}};

// Files of Llama and Mistral, too.
void add_mixtral(const GgufFile&, const GgufMetadata& metadata, json& config) {
  const std::int64_t experts = metadata.integer("expert_count", 0);
  config["model_type"] = experts > 0 ? "mixtral" : "llama";
  if (experts > 0) config["num_local_experts"] = experts;
}

constexpr GgufArchitecture kMixtralGguf[] = {
    {.name = "llama",
     .type = "mixtral",
     .tensors = kMixtralNames,
     .experts = kExpertsOfMixtral,
     .divides_weights = true,
     .alternating_halves = true,
     .rope_factors = true,
     .add = add_mixtral},
};

}  // namespace

const ModelFamily kMixtral{
    .type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .block = &kMixtralBlock,
    .tensors = kMixtralTensors,
    .fused = kMixtralInMemory,
    .fields = {.read = kMixtralRead, .refused = kMixtralRefused, .more = {&kGroupedFields, &kNamesOfExperts}},
    .gguf = kMixtralGguf,
    .read = read_mixtral,
    .write = write_mixtral,
    .writes = writes_mixtral,
    .restate = restate_mixtral};

}  // namespace switchyard
