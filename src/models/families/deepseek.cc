// DeepSeek-V2 and V3, and Kimi K2: latent attention, dense layers before the first with experts, shared
// experts. The two generations differ in how the router scores and selects.
//
// A layer, with n(x) a root mean square norm with weights of its own at each place:
//   c = n(Wqa n(x)), [q', q"] = Wqb c a head (Wq n(x) where q_lora_rank is 0)
//   [l, k"] = Wkva n(x), [k', v] = Wkvb n(l) a head; k" is one for all heads
//   h = x + Wo softmax((q'·k' + rope(q")·rope(k")) · scale) v,
//     scale = (nope + rope_dim)^-1/2 · YaRN's factor squared
//   y = h + Wo (silu(W0 m) · W1 m) in the first dense layers, m = n(h)
//   y = h + sum of w[e]·E[e](m) over the K chosen e + S(m); each E and S as the line before,
//     S: shared experts
// V2: p = softmax(G m); the best groups by their largest p; K best p there; w = p · scaling
// V3, Kimi K2: s = sigmoid(G m); the best groups by the sum of their two largest s + b; K best s + b there;
//   w = s / sum of the chosen s · scaling. Prediction layers: x' = P [n(embedding of the next token),
//     n(x)], a layer.
#include "models/families/deepseek.h"

#include <fmt/format.h>

#include "core/error.h"
#include "models/families/gguf_settings.h"

namespace switchyard {

const DecoderBlock kDeepseekBlock{.name = "deepseek", .experts = true, .latent_attention = true};

void read_latent_attention(const HubConfig& hub, ConfigKeys& keys) {
  keys["attention_type"] = "mla";
  keys["attention_bias"] = hub.flag("attention_bias", false);
  keys["use_qk_norm"] = false;
  keys["base_num_kv_heads"] = hub.positive("num_attention_heads");  // every head has its own key and value
  keys["latent_norm_epsilon"] = kHubLatentEpsilon;
  keys["q_lora_rank"] = hub.integer("q_lora_rank", 0);
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    keys[key] = hub.positive(key);
  }
}

bool has_hub_latent_epsilon(const ModelConfig& model) {
  return model.attention().latent_norm_epsilon == static_cast<float>(kHubLatentEpsilon);
}

void write_latent_attention(const ModelConfig& model, HubJson& hub) {
  hub["num_key_value_heads"] = model.attention().heads;
  hub["q_lora_rank"] = model.attention().q_lora > 0 ? HubJson(model.attention().q_lora) : HubJson(nullptr);
  hub["kv_lora_rank"] = model.attention().kv_lora;
  hub["qk_nope_head_dim"] = model.attention().nope;
  hub["qk_rope_head_dim"] = model.attention().rope_dim;
  hub["v_head_dim"] = model.attention().v_dim;
}

void read_first_expert_layer(const HubConfig& hub, std::optional<std::int64_t> absent, ConfigKeys& keys) {
  constexpr const char* kKey = "first_k_dense_replace";
  const std::int64_t layers = hub.positive("num_hidden_layers"),
                     dense = absent ? hub.integer(kKey, *absent) : hub.integer(kKey);
  if (dense >= layers)
    hub.wrong(hub.has(kKey) ? kKey : "num_hidden_layers",
              fmt::format("a layer with experts after {} dense ones", dense));
  keys["first_num_dense_layers"] = dense;
}

void read_expert_layers(const HubConfig& hub, std::int64_t absent, ConfigKeys& keys) {
  if (!hub.has("mlp_layer_types")) return read_first_expert_layer(hub, absent, keys);
  const nlohmann::json layers = layers_that_are(hub, "mlp_layer_types", "sparse", "dense");
  if (layers.empty()) hub.wrong("mlp_layer_types", "sparse for at least one layer");
  keys["moe_layers"] = layers;
}

void write_expert_layers(const ModelConfig& model, HubJson& hub) {
  HubJson kinds = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i)
    kinds.push_back(model.layer(i).has_experts() ? "sparse" : "dense");
  hub["mlp_layer_types"] = kinds;
}

void write_predictions(const ModelConfig& model, HubJson& hub) {
  if (model.predictions > 0) hub["num_nextn_predict_layers"] = model.predictions;
}

namespace {

constexpr std::string_view kLatentRead[] = {"attention_bias",   "q_lora_rank",      "kv_lora_rank",
                                            "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"};
// A head has two widths, stated apart.
constexpr std::string_view kLatentUnused[] = {"head_dim", "qk_head_dim"};
constexpr std::string_view kExpertsRead[] = {
    "n_routed_experts", "num_experts_per_tok",   "n_shared_experts", "moe_intermediate_size",
    "norm_topk_prob",   "routed_scaling_factor", "n_group",          "topk_group",
    "topk_method",      "first_k_dense_replace"};
constexpr FixedField kExpertsRefused[] = {{"use_sliding_window", "false"}, {"moe_layer_freq", "1"}};
// Losses and layouts of the training that made a model.
constexpr std::string_view kExpertsUnused[] = {"aux_loss_alpha", "seq_aux", "ep_size"};
constexpr HubFields kExpertFields{
    .read = kExpertsRead, .refused = kExpertsRefused, .unused = kExpertsUnused, .more = {&kNamesOfExperts}};
constexpr FixedField kExpertsOfDeepseek2Refused[] = {{"scoring_func", R"("softmax")"},
                                                     {"norm_topk_prob", "false"}};
constexpr std::string_view kExpertsOfDeepseek3Read[] = {"num_nextn_predict_layers"};
constexpr FixedField kExpertsOfDeepseek3Refused[] = {{"scoring_func", R"("sigmoid")"},
                                                     {"topk_method", R"("noaux_tc")"}};
// Another name of the number of prediction layers, which the tensors tell.
constexpr std::string_view kExpertsOfDeepseek3Unused[] = {"num_mtp_layers"};
// rope_interleave says whether the two values of a rotated pair are neighbours.
constexpr std::string_view kDeepseek3Read[] = {"rope_interleave"};

void read_router_of_deepseek(const HubConfig& hub, bool second, const ExpertDefaults& defaults,
                             ConfigKeys& keys) {
  const char* usual = second ? "softmax" : "sigmoid";
  const std::string method = hub.text("topk_method", second ? "greedy" : "noaux_tc");
  const bool limited = method == "group_limited_greedy";
  if (second && method != "greedy" && !limited) hub.wrong("topk_method", "greedy or group_limited_greedy");
  keys["routed_score_func"] = usual;
  keys["routed_bias"] = !second;
  keys["float32_gate_logits"] = true;  // whatever the model's type is
  keys["norm_topk_prob"] = flag_or_null(hub, "norm_topk_prob", !second);
  keys["routed_scaling_factor"] = hub.number("routed_scaling_factor", defaults.scaling);
  // The third generation has groups unless it says that it has none.
  const bool stated = defaults.groups == 0;
  const std::int64_t groups = stated ? hub.integer("n_group") : hub.integer("n_group", defaults.groups),
                     best = stated ? hub.integer("topk_group") : hub.integer("topk_group", 1);
  const bool grouped = groups > 1 && (limited || !second);
  keys["n_routing_groups"] = grouped ? groups : -1;
  keys["topk_routing_group"] = grouped ? best : -1;
  const std::int64_t experts = hub.positive("n_routed_experts");
  if (grouped && (experts % groups != 0 || best < 1 || best > groups)) {
    fail_usage(
        "[hub config] n_group={}, topk_group={}: expected n_group to divide n_routed_experts={} and "
        "topk_group "
        "in 1..n_group",
        groups, best, experts);
  }
}

void read_experts(const HubConfig& hub, bool second, const ExpertDefaults& defaults, ConfigKeys& keys) {
  keys["num_experts"] = hub.positive("n_routed_experts");
  keys["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  keys["shared_experts"] = hub.integer("n_shared_experts", 0);
  keys["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  read_router_of_deepseek(hub, second, defaults, keys);
}

void read_attention_and_layers(const HubConfig& hub, bool states_pairs, ConfigKeys& keys) {
  read_rope(hub, {.latent = true, .states_pairs = states_pairs, .usual_theta = 10000}, keys);
  read_latent_attention(hub, keys);
  read_first_expert_layer(hub, {}, keys);
}

void read_deepseek_v2(const HubConfig& hub, ConfigKeys& keys) {
  read_attention_and_layers(hub, false, keys);
  read_experts(hub, true, {.groups = 1, .scaling = 1}, keys);
}
void read_deepseek_v3(const HubConfig& hub, ConfigKeys& keys) {
  read_attention_and_layers(hub, true, keys);
  read_experts(hub, false, {}, keys);
}

void write_experts_of_deepseek(const Config& config, const ModelConfig& model, bool second, HubJson& hub) {
  const MoeConfig& moe = model.moe();
  hub["n_routed_experts"] = moe.experts;
  hub["n_shared_experts"] = model.shared_experts;
  hub["num_experts_per_tok"] = moe.slots;
  hub["moe_intermediate_size"] = model.moe_mlp;
  hub["norm_topk_prob"] = moe.normalise && !second;
  hub["routed_scaling_factor"] = config.get_float("routed_scaling_factor");
  hub["scoring_func"] = second ? "softmax" : "sigmoid";
  const bool grouped = moe.groups > 1;
  hub["topk_method"] = !second ? "noaux_tc" : grouped ? "group_limited_greedy" : "greedy";
  hub["n_group"] = grouped ? moe.groups : 1;
  hub["topk_group"] = grouped ? moe.kept_groups : 1;
  if (!second) hub["rope_interleave"] = model.attention().rope.interleaved;
}

void write_attention_and_layers(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_latent_attention(model, hub);
  hub["first_k_dense_replace"] = config.get_int("first_num_dense_layers");
  hub["moe_layer_freq"] = 1;
}

void write_deepseek_v2(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_attention_and_layers(config, model, hub);
  write_experts_of_deepseek(config, model, true, hub);
}
void write_deepseek_v3(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_attention_and_layers(config, model, hub);
  write_predictions(model, hub);
  write_experts_of_deepseek(config, model, false, hub);
}

// No dense layer comes after one with experts.
bool is_deepseek(const ModelConfig& model) {
  const std::vector<std::int64_t> sparse = model.moe_layers();
  return !model.has_indexer() && !sparse.empty() && sparse.front() + std::ssize(sparse) == model.depth();
}
bool writes_deepseek_v2(const ModelConfig& model) {
  return is_deepseek(model) && model.moe().score == RouterScore::softmax;
}
bool writes_deepseek_v3(const ModelConfig& model) {
  return is_deepseek(model) && model.moe().score != RouterScore::softmax;
}

bool never_writes(const ModelConfig&) {
  return false;
}

void add_deepseek_v2_or_v3(const GgufFile& file, const GgufMetadata& metadata, nlohmann::json& config) {
  add_deepseek(file, metadata, config);
  if (config["scoring_func"] == "softmax") config["model_type"] = "deepseek_v2";
}

constexpr GgufArchitecture kDeepseekGguf[] = {
    {.name = "deepseek2", .type = "deepseek_v3", .rotates_part = true, .add = add_deepseek_v2_or_v3},
};

}  // namespace

const HubFields kLatentFields{.read = kLatentRead, .unused = kLatentUnused};
const HubFields kExpertsOfDeepseek3Fields{.read = kExpertsOfDeepseek3Read,
                                          .refused = kExpertsOfDeepseek3Refused,
                                          .unused = kExpertsOfDeepseek3Unused,
                                          .more = {&kExpertFields}};

void restate_router_bias(const ModelConfig& model, Restated& restated) {
  if (model.moe().score != RouterScore::sigmoid || model.moe().bias) return;
  restated.keys["routed_bias"] = true;
  restated.notices.push_back("routed_bias=false: written with a router's bias of zeros");
}

void read_experts_of_deepseek3(const HubConfig& hub, const ExpertDefaults& defaults, ConfigKeys& keys) {
  read_experts(hub, false, defaults, keys);
}
void write_experts_of_deepseek3(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_experts_of_deepseek(config, model, false, hub);
}

const ModelFamily kDeepseekV2{
    .type = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .block = &kDeepseekBlock,
    .tensors = {},
    .fused = kExpertsInMemory,
    .fields = {.refused = kExpertsOfDeepseek2Refused, .more = {&kLatentFields, &kExpertFields}},
    .gguf = kDeepseekGguf,
    .read = read_deepseek_v2,
    .write = write_deepseek_v2,
    .writes = writes_deepseek_v2};
constexpr ModelFamily kDeepseekV3{
    .type = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .block = &kDeepseekBlock,
    .tensors = {},
    .fused = kExpertsInMemory,
    .predictions = PredictionForm::numbered,
    .fields = {.read = kDeepseek3Read, .more = {&kLatentFields, &kExpertsOfDeepseek3Fields}},
    .read = read_deepseek_v3,
    .write = write_deepseek_v3,
    .writes = writes_deepseek_v3,
    .restate = restate_router_bias};
// A DeepSeek-V3 under another name: it is written as one. K2.5 and later have it beside what sees images.
constexpr ModelFamily kKimiK2 = [] {
  ModelFamily family = kDeepseekV3;
  family.type = "kimi_k2";
  family.outer_type = "kimi_k25";
  family.root = {"language_model.", ""};
  family.writes = never_writes;
  family.restate = nullptr;
  return family;
}();

}  // namespace switchyard
