// Qwen3-Next (qwen3_next) and the text decoders of Qwen3.5 and 3.6, with experts (qwen3_5_moe) or dense
// (qwen3_5): gated delta nets in most layers, attention with an output gate in the others, norms that
// multiply by 1 + weight, and a gated shared expert. Both compute alike and store their weights differently.
//
// A layer:
//   attention: [q, g], k, v = W n(x); q and k normed over a head; rope on part of it
//   h = x + Wo (sigmoid(g) · softmax(q·k · head_dim^-1/2) v)
//   delta net: q, k, v = silu(causal convolution of W n(x)), q and k of length 1; b = sigmoid(Wb n(x)),
//   a = exp(-exp(A) · softplus(Wa n(x) + dt)) a head; S = a·S' + k (b·(v - (a·S')k)),
//     S' the state before; o = S q · d^-1/2
//   h = x + Wo (n(o) · silu(Wz n(x)))
//   m = n(h): p = softmax(G m); w = the K largest p over their sum;
//     y = h + sum of w[e]·E[e](m) + sigmoid(g·m)·S(m); dense: y = h + MLP(m)
#include "models/families/gguf_settings.h"
#include "models/families/qwen3.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr DecoderBlock kQwen3NextBlock{.name = "qwen3_next",
                                       .normed_queries = true,
                                       .experts = true,
                                       .delta_nets = true,
                                       .gated_attention = true,
                                       .scaled_scores = true,
                                       .norms_plus_one = true,
                                       .softmax_over_all = true,
                                       .gated_shared_experts = true};
constexpr DecoderBlock kQwen35MoeBlock{.name = "qwen3_5_moe",
                                       .other_name = "qwen3_5",
                                       .normed_queries = true,
                                       .experts = true,
                                       .delta_nets = true,
                                       .gated_attention = true,
                                       .scaled_scores = true,
                                       .norms_plus_one = true,
                                       .softmax_over_all = true,
                                       .gated_shared_experts = true};

constexpr DecoderBlock kQwen35Block{.name = "qwen3_5_dense",
                                    .normed_queries = true,
                                    .delta_nets = true,
                                    .gated_attention = true,
                                    .scaled_scores = true,
                                    .norms_plus_one = true};

constexpr TensorRule kQwen3NextTensors[] = {
    {"attention.query", "self_attn.query_proj.weight"},
    {"attention.gate", "self_attn.gate_proj.weight"},
    {"delta.query", "linear_attn.q_proj.weight"},
    {"delta.key", "linear_attn.k_proj.weight"},
    {"delta.value", "linear_attn.v_proj.weight"},
    {"delta.gate", "linear_attn.in_proj_z.weight"},
    {"delta.strength", "linear_attn.in_proj_b.weight"},
    {"delta.decay", "linear_attn.in_proj_a.weight"},
    {"delta.query_conv", "linear_attn.q_conv1d.weight", TensorForm::taps},
    {"delta.key_conv", "linear_attn.k_conv1d.weight", TensorForm::taps},
    {"delta.value_conv", "linear_attn.v_conv1d.weight", TensorForm::taps},
    {"delta.decay_rate", "linear_attn.A_log", TensorForm::vector},
    {"delta.decay_bias", "linear_attn.dt_bias", TensorForm::vector},
    {"delta.norm", "linear_attn.norm.weight", TensorForm::vector},
    {"delta.out", "linear_attn.out_proj.weight"},
    {"moe.shared.wi_0", "mlp.shared_expert.gate_proj.weight"},
    {"moe.shared.wi_1", "mlp.shared_expert.up_proj.weight"},
    {"moe.shared.wo", "mlp.shared_expert.down_proj.weight"},
    {"moe.shared.gate", "mlp.shared_expert_gate.weight"},
};

// A dense model lacks the last four, which are the shared expert's.
constexpr std::span<const TensorRule> kQwen35DenseTensors{kQwen3NextTensors,
                                                          std::size(kQwen3NextTensors) - 4};

struct DeltaSizes {
  std::int64_t key_heads, value_heads, key_dim, value_dim;
};

DeltaSizes delta_sizes(const HubConfig& hub) {
  constexpr std::int64_t kUsualKeyHeads = 16, kUsualValueHeads = 32, kUsualWidth = 128;
  const auto size = [&](const char* key, std::int64_t usual) {
    return hub.has(key) ? hub.positive(key) : usual;
  };
  const DeltaSizes s{size("linear_num_key_heads", kUsualKeyHeads),
                     size("linear_num_value_heads", kUsualValueHeads),
                     size("linear_key_head_dim", kUsualWidth), size("linear_value_head_dim", kUsualWidth)};
  if (s.value_heads % s.key_heads != 0)
    hub.wrong(hub.has("linear_num_value_heads") ? "linear_num_value_heads" : "linear_num_key_heads",
              "as many value heads as key heads, or a multiple");
  return s;
}

constexpr std::int64_t kUsualHeadDim = 256;

FusedRows query_and_gate(const HubConfig& hub) {
  const std::int64_t width = hub.has("head_dim") ? hub.positive("head_dim") : kUsualHeadDim;
  return {hub.positive("num_attention_heads"), {width, width}};
}

// Each key head's query and key, then the values and gates of its value heads.
FusedRows by_key_head(const HubConfig& hub) {
  const DeltaSizes s = delta_sizes(hub);
  const std::int64_t values = s.value_heads / s.key_heads * s.value_dim;
  return {s.key_heads, {s.key_dim, s.key_dim, values, values}};
}

FusedRows numbers_by_key_head(const HubConfig& hub) {
  const DeltaSizes s = delta_sizes(hub);
  return {s.key_heads, {s.value_heads / s.key_heads, s.value_heads / s.key_heads}};
}

FusedRows all_query_key_value(const HubConfig& hub) {
  const DeltaSizes s = delta_sizes(hub);
  return {1, {s.key_heads * s.key_dim, s.key_heads * s.key_dim, s.value_heads * s.value_dim}};
}

constexpr std::string_view kQueryAndGate[] = {"self_attn.query_proj.weight", "self_attn.gate_proj.weight"},
                           kProducts[] = {"linear_attn.q_proj.weight", "linear_attn.k_proj.weight",
                                          "linear_attn.v_proj.weight", "linear_attn.in_proj_z.weight"},
                           kQueryKeyValue[] = {"linear_attn.q_proj.weight", "linear_attn.k_proj.weight",
                                               "linear_attn.v_proj.weight"},
                           kNumbers[] = {"linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight"},
                           kTaps[] = {"linear_attn.q_conv1d.weight", "linear_attn.k_conv1d.weight",
                                      "linear_attn.v_conv1d.weight"};

constexpr FusedRule kQwen3NextFused[] = {
    {.fused = "self_attn.q_proj.weight", .parts = kQueryAndGate, .rows = query_and_gate},
    {.fused = "linear_attn.in_proj_qkvz.weight", .parts = kProducts, .rows = by_key_head},
    {.fused = "linear_attn.in_proj_ba.weight", .parts = kNumbers, .rows = numbers_by_key_head},
    {.fused = "linear_attn.conv1d.weight", .parts = kTaps, .rows = all_query_key_value},
    {.fused = "mlp.experts.gate_up_proj", .parts = kGateAndUpOfExperts, .written = false},
    {.fused = "mlp.experts.down_proj", .parts = kDownOfExperts, .written = false},
};
constexpr FusedRule kQwen35MoeFused[] = {
    {.fused = "self_attn.q_proj.weight", .parts = kQueryAndGate, .rows = query_and_gate},
    {.fused = "linear_attn.in_proj_qkv.weight", .parts = kQueryKeyValue, .rows = all_query_key_value},
    {.fused = "linear_attn.conv1d.weight", .parts = kTaps, .rows = all_query_key_value},
    {.fused = "mlp.experts.gate_up_proj", .parts = kGateAndUpOfExperts},
    {.fused = "mlp.experts.down_proj", .parts = kDownOfExperts},
};
// A dense model lacks the last two.
constexpr std::span<const FusedRule> kQwen35Fused{kQwen35MoeFused, std::size(kQwen35MoeFused) - 2};

constexpr std::string_view kDeltaRead[] = {
    "linear_num_key_heads",   "linear_num_value_heads",  "linear_key_head_dim",     "linear_value_head_dim",
    "linear_conv_kernel_dim", "full_attention_interval", "num_nextn_predict_layers"};
constexpr std::string_view kSharedRead[] = {"shared_expert_intermediate_size"};
constexpr FixedField kDeltaRefused[] = {{"attention_bias", "false"}, {"use_sliding_window", "false"}};
constexpr HubFields kDeltaFields{.read = kDeltaRead, .refused = kDeltaRefused, .more = {&kGroupedFields}};
constexpr HubFields kDeltaAndExpertsFields{.read = kSharedRead,
                                           .more = {&kDeltaFields, &kExpertsOfQwen3Fields}};
// Its weights are always divided by their sum.
constexpr FixedField kQwen35Refused[] = {{"norm_topk_prob", "true"}, {"attn_output_gate", "true"}};
constexpr FixedField kQwen35DenseRefused[] = {{"attn_output_gate", "true"}};
constexpr std::string_view kQwen35Unused[] = {"mamba_ssm_dtype", "mtp_use_dedicated_embeddings"};
constexpr OtherName kQwen35OtherNames[] = {{"mtp_num_hidden_layers", "num_nextn_predict_layers"}};

void read_delta_net(const HubConfig& hub, ConfigKeys& keys) {
  constexpr double kUsualShare = 0.25;
  read_rope(hub, {.usual_theta = 10000, .usual_share = kUsualShare}, keys);
  read_grouped_attention(hub, {.head_dim = kUsualHeadDim, .qk_norm = true}, keys);
  keys["sliding_window_size"] = 0;
  const DeltaSizes sizes = delta_sizes(hub);
  keys["gdn_num_key_heads"] = sizes.key_heads;
  keys["gdn_num_value_heads"] = sizes.value_heads;
  keys["gdn_key_head_dim"] = sizes.key_dim;
  keys["gdn_value_head_dim"] = sizes.value_dim;
  constexpr std::int64_t kUsualTaps = 4, kMostTaps = 8;
  const std::int64_t taps =
      hub.has("linear_conv_kernel_dim") ? hub.positive("linear_conv_kernel_dim") : kUsualTaps;
  if (taps > kMostTaps) hub.wrong("linear_conv_kernel_dim", "at most 8");
  keys["gdn_conv_kernel_dim"] = taps;
  if (hub.has("layer_types")) {
    keys["delta_layers"] = layers_that_are(hub, "layer_types", "linear_attention", "full_attention");
  } else {
    constexpr std::int64_t kUsualInterval = 4;
    keys["inhomogeneous_layer_cycle_interval"] =
        hub.has("full_attention_interval") ? hub.positive("full_attention_interval") : kUsualInterval;
  }
}

void read_shared_expert(const HubConfig& hub, ConfigKeys& keys) {
  keys["shared_experts"] = 1;
  keys["shared_expert_mlp_dim"] = hub.positive("shared_expert_intermediate_size");
}

void write_delta_net(const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["partial_rotary_factor"] = model.attention().rope.share;
  HubJson kinds = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i)
    kinds.push_back(model.layer(i).delta >= 0 ? "linear_attention" : "full_attention");
  hub["layer_types"] = kinds;
  const DeltaKind& delta = model.deltas.front();
  hub["linear_num_key_heads"] = delta.key_heads;
  hub["linear_num_value_heads"] = delta.value_heads;
  hub["linear_key_head_dim"] = delta.key_dim;
  hub["linear_value_head_dim"] = delta.value_dim;
  hub["linear_conv_kernel_dim"] = delta.taps;
  if (model.predictions > 0) hub["num_nextn_predict_layers"] = model.predictions;
}

void write_experts(const ModelConfig& model, HubJson& hub) {
  write_experts_of_qwen3(model, hub);
  hub["shared_expert_intermediate_size"] = model.shared_mlp;
}

// Rotations as the classes of Qwen3.5 state them.
void write_rope_parameters(const ModelConfig& model, HubJson& hub) {
  hub["rope_parameters"] = {{"rope_type", "default"},
                            {"rope_theta", hub["rope_theta"]},
                            {"partial_rotary_factor", model.attention().rope.share}};
  if (hub["rope_scaling"].is_object()) hub["rope_parameters"].update(hub["rope_scaling"]);
  for (const char* key : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) hub.erase(key);
}

// The published classes have these in every model.
bool has_all_parts(const ModelConfig& model) {
  return model.attention().qk_norm && model.shared_experts > 0 && model.moe().experts > 0 &&
         std::ranges::all_of(model.deltas, &DeltaKind::unit_vectors);
}

void read_qwen3_next(const HubConfig& hub, ConfigKeys& keys) {
  read_delta_net(hub, keys);
  read_shared_expert(hub, keys);
  read_experts_of_qwen3(hub, true, keys);
}

void write_qwen3_next(const Config&, const ModelConfig& model, HubJson& hub) {
  write_delta_net(model, hub);
  write_experts(model, hub);
}

bool writes_qwen3_next(const ModelConfig& model) {
  return has_all_parts(model);
}

void read_qwen3_5_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_delta_net(hub, keys);
  read_shared_expert(hub, keys);
  read_experts_of_qwen3(hub, true, keys);
  if (keys.contains("moe_layers"))
    hub.wrong(hub.integer("decoder_sparse_step", 1) != 1 ? "decoder_sparse_step" : "mlp_only_layers",
              "experts in all layers; this family has no dense ones");
}

// Fields that the classes of Qwen3.5 state otherwise: rotations, and the number of prediction layers.
void write_as_qwen3_5(const ModelConfig& model, HubJson& hub) {
  write_rope_parameters(model, hub);
  if (model.predictions > 0) hub["mtp_num_hidden_layers"] = model.predictions;
  hub.erase("num_nextn_predict_layers");
}

void write_qwen3_5_moe(const Config&, const ModelConfig& model, HubJson& hub) {
  write_delta_net(model, hub);
  write_experts(model, hub);
  for (const char* key : {"norm_topk_prob", "decoder_sparse_step", "mlp_only_layers", "intermediate_size"})
    hub.erase(key);
  write_as_qwen3_5(model, hub);
}

void write_qwen3_5(const Config&, const ModelConfig& model, HubJson& hub) {
  write_delta_net(model, hub);
  write_as_qwen3_5(model, hub);
}

bool writes_qwen3_5(const ModelConfig& model) {
  return model.attention().qk_norm && std::ranges::all_of(model.deltas, &DeltaKind::unit_vectors);
}

bool writes_qwen3_5_moe(const ModelConfig& model) {
  return has_all_parts(model) && std::ssize(model.moe_layers()) == model.depth() &&
         (model.moe().normalise || model.moe().softmax_over_selected);
}

using nlohmann::json;

// GgufWeights::add_delta_net() knows the others.
constexpr GgufName kDeltaNetNames[] = {
    kSecondNormName, kGatedSharedNames[0], kGatedSharedNames[1], kGatedSharedNames[2], kGatedSharedNames[3],
};

// The kinds of layers, one a layer: a list of flags, or every so many-th layer has full attention.
json layer_types_of(const GgufMetadata& metadata, std::int64_t layers) {
  constexpr const char* kRecurrent = "attention.recurrent_layers";
  json kinds = json::array();
  const auto add = [&](bool recurrent) {
    kinds.push_back(recurrent ? "linear_attention" : "full_attention");
  };
  constexpr std::int64_t kUsualInterval = 4;
  const std::int64_t interval = metadata.integer("full_attention_interval", kUsualInterval);
  if (metadata.has(kRecurrent)) {
    for (const bool recurrent : metadata.flags(kRecurrent, layers)) add(recurrent);
    return kinds;
  }
  if (interval == 0) metadata.wrong("full_attention_interval", "at least 1");
  for (std::int64_t i = 0; i < layers; ++i) add((i + 1) % interval != 0);
  return kinds;
}

void add_delta_net(const GgufFile&, const GgufMetadata& metadata, json& config) {
  config["layer_types"] = layer_types_of(metadata, config["num_hidden_layers"].get<std::int64_t>());
  config["head_dim"] = metadata.integer("attention.key_length");  // no head is as wide as all divided
  add_rotated_share(metadata, config);
  const std::int64_t value_heads = metadata.integer("ssm.time_step_rank"),
                     inner = metadata.integer("ssm.inner_size");
  if (value_heads == 0 || inner % value_heads != 0)
    metadata.wrong("ssm.inner_size", fmt::format("a multiple of the {} value heads", value_heads));
  config["linear_num_key_heads"] = metadata.integer("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = metadata.integer("ssm.state_size");
  config["linear_value_head_dim"] = inner / value_heads;
  config["linear_conv_kernel_dim"] = metadata.integer("ssm.conv_kernel");
}

void add_delta_net_and_experts(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  add_delta_net(file, metadata, config);
  config["num_experts"] = metadata.integer("expert_count");
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = metadata.integer("expert_shared_feed_forward_length");
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", true);
  if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
}

void add_qwen35_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  add_delta_net_and_experts(file, metadata, config);
  if (config["norm_topk_prob"] == false) metadata.wrong("expert_weights_norm", "true");
}

constexpr GgufArchitecture kQwen3NextGguf[] = {
    {.name = "qwen3next",
     .type = "qwen3_next",
     .tensors = kDeltaNetNames,
     .norms_plus_one = true,
     .rotates_part = true,
     .add = add_delta_net_and_experts},
};
constexpr GgufArchitecture kQwen35MoeGguf[] = {
    {.name = "qwen35moe",
     .type = "qwen3_5_moe_text",
     .tensors = kDeltaNetNames,
     .norms_plus_one = true,
     .rotates_part = true,
     .heads_in_turns = true,
     .add = add_qwen35_moe},
};
constexpr GgufArchitecture kQwen35Gguf[] = {
    {.name = "qwen35",
     .type = "qwen3_5_text",
     .tensors = {&kSecondNormName, 1},
     .norms_plus_one = true,
     .rotates_part = true,
     .heads_in_turns = true,
     .add = add_delta_net},
};

}  // namespace

const ModelFamily kQwen3Next{.type = "qwen3_next",
                             .architecture = "Qwen3NextForCausalLM",
                             .block = &kQwen3NextBlock,
                             .tensors = kQwen3NextTensors,
                             .fused = kQwen3NextFused,
                             .predictions = PredictionForm::mtp,
                             .fields = {.more = {&kDeltaAndExpertsFields}},
                             .gguf = kQwen3NextGguf,
                             .read = read_qwen3_next,
                             .write = write_qwen3_next,
                             .writes = writes_qwen3_next,
                             .restate = restate_experts_of_qwen3};
const ModelFamily kQwen35Moe{
    .type = "qwen3_5_moe_text",
    .outer_type = "qwen3_5_moe",
    .architecture = "Qwen3_5MoeForCausalLM",
    .block = &kQwen35MoeBlock,
    .tensors = kQwen3NextTensors,
    .fused = kQwen35MoeFused,
    .root = {"model.language_model.", "model.", /*written=*/true},
    .other_names = kQwen35OtherNames,
    .only_experts = true,
    .predictions = PredictionForm::mtp,
    .fields = {.refused = kQwen35Refused, .unused = kQwen35Unused, .more = {&kDeltaAndExpertsFields}},
    .gguf = kQwen35MoeGguf,
    .read = read_qwen3_5_moe,
    .write = write_qwen3_5_moe,
    .writes = writes_qwen3_5_moe,
    .restate = restate_experts_of_qwen3};

const ModelFamily kQwen35{
    .type = "qwen3_5_text",
    .outer_type = "qwen3_5",
    .architecture = "Qwen3_5ForCausalLM",
    .block = &kQwen35Block,
    .tensors = kQwen35DenseTensors,
    .fused = kQwen35Fused,
    .root = {"model.language_model.", "model.", /*written=*/true},
    .other_names = kQwen35OtherNames,
    .predictions = PredictionForm::mtp,
    .fields = {.refused = kQwen35DenseRefused, .unused = kQwen35Unused, .more = {&kDeltaFields}},
    .gguf = kQwen35Gguf,
    .read = read_delta_net,
    .write = write_qwen3_5,
    .writes = writes_qwen3_5};

}  // namespace switchyard
