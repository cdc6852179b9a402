// Qwen3, dense and with experts: norms of queries and keys.
//
// A layer:
//   q, k, v = W n(x); q and k normed over a head; rope; h = x + Wo softmax(q·k · head_dim^-1/2) v
//   dense: y = h + MLP(n(h)); with experts, m = n(h): p = softmax(G m); w = the K largest p,
//     over their sum where
//   norm_topk_prob; y = h + sum of w[e]·E[e](m)
#include "models/families/qwen3.h"

#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kQwen3Block{.name = "qwen3", .scaled_scores = true, .softmax_over_all = true};
constexpr DecoderBlock kQwen3MoeBlock{.name = "qwen3_moe",
                                      .experts = true,
                                      .one_mlp_width = true,
                                      .scaled_scores = true,
                                      .softmax_over_all = true};

using nlohmann::json;

// Layers before the first with a window, where a file does not say.
constexpr std::int64_t kUsualFullLayers = 28;

constexpr std::string_view kWindowsRead[] = {"use_sliding_window", "sliding_window", "max_window_layers"};
constexpr std::string_view kQwen3ExpertsRead[] = {
    "num_experts",    "num_local_experts",   "num_experts_per_tok", "moe_intermediate_size",
    "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers"};
constexpr std::string_view kQwen3MoeRead[] = {"use_sliding_window", "sliding_window"};
// The first classes had this field; transformers 5 has not.
constexpr std::string_view kQwen3MoeUnused[] = {"max_window_layers"};
constexpr FixedField kQwen3VlRefused[] = {{"use_sliding_window", "false"}, {"norm_topk_prob", "true"}};
constexpr std::string_view kQwen3VlUnused[] = {"sliding_window", "max_window_layers"};
constexpr HubFields kQwen3MoeFields{
    .read = kQwen3MoeRead, .unused = kQwen3MoeUnused, .more = {&kGroupedFields}};

// `head_dim`: as in GroupedAttention.
void read_attention_of_qwen3(const HubConfig& hub, std::int64_t head_dim, ConfigKeys& keys) {
  read_rope(hub, {}, keys);
  read_grouped_attention(hub, {.head_dim = head_dim, .qk_norm = true, .biases = true}, keys);
}

void read_qwen3(const HubConfig& hub, ConfigKeys& keys) {
  constexpr std::int64_t kUsualHeadDim = 128;  // whatever the width
  read_attention_of_qwen3(hub, kUsualHeadDim, keys);
  read_windows_of_qwen3(hub, keys);
}

void write_qwen3(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  write_windows_of_qwen3(model, hub);
}

// The numbers of the layers with experts: each decoder_sparse_step-th, but for those of mlp_only_layers.
json sparse_layers(const HubConfig& hub) {
  const std::int64_t layers = hub.positive("num_hidden_layers"), step = hub.integer("decoder_sparse_step", 1);
  if (step < 1 || step > layers) hub.wrong("decoder_sparse_step", "1 to num_hidden_layers");
  std::vector<bool> dense(static_cast<std::size_t>(layers));
  const json listed = hub.has("mlp_only_layers") ? hub.at("mlp_only_layers") : json::array();
  constexpr const char* kNumbers = "a list of numbers of layers, from 0 on";
  if (!listed.is_array()) hub.wrong("mlp_only_layers", kNumbers);
  for (const json& layer : listed) {
    if (!layer.is_number_integer() || layer < 0 || layer >= layers) hub.wrong("mlp_only_layers", kNumbers);
    dense[layer.get<std::size_t>()] = true;
  }
  json sparse = json::array();
  for (std::int64_t i = 0; i < layers; ++i) {
    if ((i + 1) % step == 0 && !dense[static_cast<std::size_t>(i)]) sparse.push_back(i);
  }
  if (sparse.empty()) hub.wrong("mlp_only_layers", "a layer that is not in it");
  return sparse;
}

// In transformers 5 a window is that of all layers, whatever max_window_layers says.
void read_qwen3_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_attention_of_qwen3(hub, 0, keys);
  keys["sliding_window_size"] = window_of_qwen3(hub);
  refuse_windows(hub, window_of_qwen3(hub) > 0 ? "sliding_attention" : "full_attention");
  read_experts_of_qwen3(hub, false, keys);
}

void write_qwen3_moe(const Config&, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["use_sliding_window"] = model.window() > 0;
  if (model.window() > 0) hub["sliding_window"] = model.window();
  write_experts_of_qwen3(model, hub);
}

// The text decoder of Qwen3-VL: Qwen3's, its weights always divided by their sum. All position ids of a text
// are alike, so that the rotation in sections (mrope) is the plain one.
void read_qwen3_vl_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_qwen3_moe(hub, keys);
  keys["norm_topk_prob"] = true;
}

bool writes_no_model(const ModelConfig&) {
  return false;
}

constexpr std::string_view kQwen3VlGateAndUp[] = {"mlp.experts.{}.gate_proj.weight",
                                                  "mlp.experts.{}.up_proj.weight"},
                           kQwen3VlDown[] = {"mlp.experts.{}.down_proj.weight"};
constexpr FusedRule kQwen3VlFused[] = {
    {.fused = "mlp.experts.gate_up_proj",
     .parts = kQwen3VlGateAndUp,
     .transposed = true,
     .outputs = "moe_intermediate_size",
     .inputs = "hidden_size"},
    {.fused = "mlp.experts.down_proj",
     .parts = kQwen3VlDown,
     .transposed = true,
     .outputs = "hidden_size",
     .inputs = "moe_intermediate_size"},
};

bool writes_qwen3(const ModelConfig&) {
  return true;
}

void restate_qwen3(const ModelConfig& model, Restated& restated) {
  if (!model.attention().qk_norm) restated.keys["decoder_block"] = "llama2";
}

using nlohmann::json;

// Qwen3-VL's decoder is Qwen3's for a text: its sections of a rotation have the same position.
void add_qwen3_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", true);
  add_experts_of_qwen(file, metadata, config);
}

constexpr GgufArchitecture kQwen3Gguf[] = {
    {.name = "qwen3", .type = "qwen3"},
};
constexpr GgufArchitecture kQwen3MoeGguf[] = {
    {.name = "qwen3moe", .type = "qwen3_moe", .add = add_qwen3_moe},
    {.name = "qwen3vlmoe", .type = "qwen3_moe", .add = add_qwen3_moe},
};

}  // namespace

const HubFields kWindowsOfQwen3Fields{.read = kWindowsRead};
const HubFields kExpertsOfQwen3Fields{.read = kQwen3ExpertsRead};

std::int64_t window_of_qwen3(const HubConfig& hub) {
  constexpr std::int64_t kUsualWindow = 4096;
  if (!hub.flag("use_sliding_window", false) || hub.is_null("sliding_window")) return 0;
  return hub.has("sliding_window") ? hub.positive("sliding_window") : kUsualWindow;
}

void read_windows_of_qwen3(const HubConfig& hub, ConfigKeys& keys) {
  if (window_of_qwen3(hub) == 0) {
    refuse_windows(hub);
    return;
  }
  keys["sliding_window_size"] = window_of_qwen3(hub);
  read_windowed_layers(hub, keys);
  if (hub.has("layer_types")) return;
  const std::int64_t layers = hub.positive("num_hidden_layers"),
                     first = hub.integer("max_window_layers", kUsualFullLayers);
  json windowed = json::array();
  for (std::int64_t i = first; i < layers; ++i) windowed.push_back(i);
  if (windowed.empty())
    keys["sliding_window_size"] = 0;
  else
    keys["windowed_layers"] = windowed;
}

void write_windows_of_qwen3(const ModelConfig& model, HubJson& hub) {
  hub["use_sliding_window"] = model.window() > 0;
  if (model.window() == 0) return;
  hub["sliding_window"] = model.window();
  hub["layer_types"] = layer_types(model);
}

void read_experts_of_qwen3(const HubConfig& hub, bool normalise, ConfigKeys& keys) {
  keys["num_experts"] = hub.positive(hub.has("num_experts") ? "num_experts" : "num_local_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  const json sparse = sparse_layers(hub);
  if (std::ssize(sparse) < hub.positive("num_hidden_layers"))
    keys["moe_layers"] = sparse;
  else  // no layer has the dense width; the reference states it like this
    keys["base_mlp_dim"] = keys["base_moe_mlp_dim"];
  keys["norm_topk_prob"] = hub.flag("norm_topk_prob", normalise);
}

void write_experts_of_qwen3(const ModelConfig& model, HubJson& hub) {
  HubJson dense = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i) {
    if (!model.layer(i).has_experts()) dense.push_back(i);
  }
  hub["intermediate_size"] = dense.empty() ? model.moe_mlp : model.mlp().width;
  hub["num_experts_per_tok"] = model.moe().slots;
  hub["num_experts"] = model.moe().experts;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = model.moe().normalise;
  hub["decoder_sparse_step"] = 1;
  hub["mlp_only_layers"] = dense;
}

void restate_experts_of_qwen3(const ModelConfig& model, Restated& restated) {
  if (model.compat && model.moe().softmax_over_selected) restated.keys["norm_topk_prob"] = true;
}

// The reference's own: no Hugging Face model is like it.
const DecoderBlock kQwen3CustomMoeBlock{.name = "qwen3_custom_moe",
                                        .experts = true,
                                        .one_mlp_width = true,
                                        .scaled_scores = true,
                                        .latent_experts = true,
                                        .softmax_over_all = true,
                                        .shared_experts = false};

const ModelFamily kQwen3{.type = "qwen3",
                         .architecture = "Qwen3ForCausalLM",
                         .block = &kQwen3Block,
                         .tensors = {},
                         .fields = {.more = {&kGroupedFields, &kWindowsOfQwen3Fields}},
                         .gguf = kQwen3Gguf,
                         .read = read_qwen3,
                         .write = write_qwen3,
                         .writes = writes_qwen3,
                         .restate = restate_qwen3};
const ModelFamily kQwen3Moe{.type = "qwen3_moe",
                            .architecture = "Qwen3MoeForCausalLM",
                            .block = &kQwen3MoeBlock,
                            .tensors = {},
                            .fused = kExpertsInMemory,
                            .fields = {.more = {&kQwen3MoeFields, &kExpertsOfQwen3Fields}},
                            .gguf = kQwen3MoeGguf,
                            .read = read_qwen3_moe,
                            .write = write_qwen3_moe,
                            .writes = writes_qwen3,
                            .restate = restate_experts_of_qwen3};
// Written as qwen3_moe, which computes the same of a text.
const ModelFamily kQwen3VlMoe{.type = "qwen3_vl_moe_text",
                              .outer_type = "qwen3_vl_moe",
                              .architecture = "Qwen3VLMoeForCausalLM",
                              .block = &kQwen3MoeBlock,
                              .tensors = {},
                              .fused = kQwen3VlFused,
                              .root = {"model.language_model.", "model."},
                              .fields = {.refused = kQwen3VlRefused,
                                         .unused = kQwen3VlUnused,
                                         .more = {&kGroupedFields, &kExpertsOfQwen3Fields}},
                              .read = read_qwen3_vl_moe,
                              .write = write_qwen3_moe,
                              .writes = writes_no_model};

}  // namespace switchyard
