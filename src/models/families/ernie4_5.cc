// ERNIE 4.5 with experts (ernie4_5_moe): grouped queries whose rotation pairs neighbouring dims, a softmax
// router whose choice adds a bias, and shared experts.
//
// A layer:
//   q, k, v = W n(x); rope; h = x + Wo softmax(q·k·d^-1/2) v
//   y = h + MLP(m) in dense layers, m = n(h); else with p = softmax(G m), the K largest p + b,
//     w = p / sum of the chosen p: y = h + sum of w[e]·E[e](m) + S(m)
#include "models/families/common.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kErnieBlock{.name = "ernie4_5_moe", .experts = true, .interleaved_rotation = true};

constexpr TensorRule kErnieTensors[] = {
    {"moe.gate_bias", "mlp.moe_statics.e_score_correction_bias", TensorForm::row},
};

constexpr std::string_view kErnieRead[] = {"moe_num_experts",       "moe_k",
                                           "moe_intermediate_size", "moe_num_shared_experts",
                                           "moe_layer_start_index", "moe_layer_end_index",
                                           "moe_layer_interval"};
constexpr FixedField kErnieRefused[] = {{"use_bias", "false"}, {"moe_norm_min", "1e-12"}};
constexpr std::string_view kErnieUnused[] = {"output_router_logits", "moe_capacity"};

// The layers from start to end, of which each `interval`-th has experts. An end of -1 is the last layer.
nlohmann::json layers_with_experts(const HubConfig& hub) {
  const std::int64_t layers = hub.positive("num_hidden_layers"),
                     begin = hub.integer("moe_layer_start_index", 1),
                     interval = hub.integer("moe_layer_interval", 1);
  const bool to_last = !hub.has("moe_layer_end_index") || hub.at("moe_layer_end_index") == -1;
  const std::int64_t end = to_last ? layers - 1 : hub.integer("moe_layer_end_index");
  if (interval == 0) hub.wrong("moe_layer_interval", "at least 1");
  nlohmann::json numbers = nlohmann::json::array();
  for (std::int64_t i = begin; i <= std::min(end, layers - 1); ++i) {
    if ((i + 1) % interval == 0) numbers.push_back(i);
  }
  if (numbers.empty()) hub.wrong("moe_layer_start_index", "a layer with experts");
  return numbers;
}

void read_ernie(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_theta = 500000}, keys);
  read_grouped_attention(hub, {}, keys);
  if (!hub.has("tie_word_embeddings")) keys["logits_via_embedding"] = true;
  keys["moe_layers"] = layers_with_experts(hub);
  keys["num_experts"] = hub.positive("moe_num_experts");
  keys["num_experts_per_tok"] = hub.positive("moe_k");
  keys["shared_experts"] = hub.integer("moe_num_shared_experts", 2);
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  keys["routed_score_func"] = "softmax";
  keys["routed_bias"] = true;
  keys["float32_gate_logits"] = true;
  keys["norm_topk_prob"] = true;
}

void write_ernie(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  const std::vector<std::int64_t> sparse = model.moe_layers();
  hub["moe_num_experts"] = model.moe().experts;
  hub["moe_k"] = model.moe().slots;
  hub["moe_num_shared_experts"] = model.shared_experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["moe_layer_start_index"] = sparse.front();
  hub["moe_layer_end_index"] = sparse.back();
  hub["moe_layer_interval"] = sparse.size() > 1 ? sparse[1] - sparse[0] : 1;
  hub["moe_norm_min"] = 1e-12;
  hub["use_bias"] = false;
}

// One interval for all layers, counted as the class counts.
bool writes_ernie(const ModelConfig& model) {
  const std::vector<std::int64_t> sparse = model.moe_layers();
  const std::int64_t interval = sparse.size() > 1 ? sparse[1] - sparse[0] : 1;
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    if ((sparse[i] + 1) % interval != 0 || sparse[i] != sparse[0] + static_cast<std::int64_t>(i) * interval)
      return false;
  }
  return !model.attention().qk_norm && model.moe().score == RouterScore::softmax && model.moe().bias &&
         model.moe().normalise;
}

using nlohmann::json;

constexpr GgufName kErnieNames[] = {{"exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias"}};

void add_ernie(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["moe_num_experts"] = metadata.integer("expert_count");
  config["moe_k"] = metadata.integer("expert_used_count");
  config.erase("num_experts_per_tok");
  config["moe_num_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["moe_layer_start_index"] = metadata.integer("leading_dense_block_count", 0);
  config["moe_layer_interval"] = metadata.integer("interleave_moe_layer_step", 1);
}

constexpr GgufArchitecture kErnieGguf[] = {
    {.name = "ernie4_5-moe",
     .type = "ernie4_5_moe",
     .tensors = kErnieNames,
     .divides_weights = true,
     .add = add_ernie},
};

}  // namespace

const ModelFamily kErnie45Moe{.type = "ernie4_5_moe",
                              .architecture = "Ernie4_5_MoeForCausalLM",
                              .block = &kErnieBlock,
                              .tensors = kErnieTensors,
                              .fused = kExpertsInMemory,
                              .fields = {.read = kErnieRead,
                                         .refused = kErnieRefused,
                                         .unused = kErnieUnused,
                                         .more = {&kGroupedFields}},
                              .gguf = kErnieGguf,
                              .read = read_ernie,
                              .write = write_ernie,
                              .writes = writes_ernie};

}  // namespace switchyard
