// GLM-4.5 and 4.6 (glm4_moe) and GLM-4.7-Flash (glm4_moe_lite): DeepSeek-V3's router,
// dense first layers and shared experts. glm4_moe has grouped queries with biases and
// rotates part of each head; glm4_moe_lite has DeepSeek's latent attention.
//
// A layer:
//   glm4_moe: q, k, v = W n(x) + b a head; norms of q and k over a head where use_qk_norm;
//     rope on the first half of a
//   head; h = x + Wo softmax(q·k · head_dim^-1/2) v.   glm4_moe_lite: latent attention as in deepseek.cc.
//   y = h + MLP(n(h)) in the first dense layers,
//     else DeepSeek-V3's experts and shared experts (deepseek.cc).
#include <fmt/format.h>

#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr DecoderBlock kGlm4Block{.name = "glm4_moe", .experts = true};
constexpr DecoderBlock kGlm4LiteBlock{.name = "glm4_moe_lite", .experts = true, .latent_attention = true};

constexpr std::string_view kGlm4Read[] = {"head_dim", "attention_bias", "use_qk_norm"};
constexpr std::string_view kGlm4LiteRead[] = {"rope_interleave", "mlp_layer_types"};

void read_glm4_moe(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.usual_share = 0.5}, keys);
  read_grouped_attention(hub, {.qk_norm = hub.flag("use_qk_norm", false), .biases = true}, keys);
  keys["attention_output_bias"] = false;
  read_first_expert_layer(hub, {}, keys);
  read_experts_of_deepseek3(hub, {.groups = 1, .scaling = 1}, keys);
}

void write_glm4_moe(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_grouped_attention(model, hub);
  hub["partial_rotary_factor"] = model.attention().rope.share;
  hub["use_qk_norm"] = model.attention().qk_norm;
  hub["first_k_dense_replace"] = config.get_int("first_num_dense_layers");
  write_experts_of_deepseek3(config, model, hub);
  write_predictions(model, hub);
}

bool writes_glm4_moe(const ModelConfig& model) {
  return model.moe().score == RouterScore::sigmoid;
}

void read_glm4_moe_lite(const HubConfig& hub, ConfigKeys& keys) {
  read_rope(hub, {.latent = true, .states_pairs = true}, keys);
  read_latent_attention(hub, keys);
  // Its class takes it for another name.
  if (hub.has("head_dim") && hub.at("head_dim") != hub.at("qk_rope_head_dim"))
    hub.wrong("head_dim", fmt::format("none, or qk_rope_head_dim={}", hub.positive("qk_rope_head_dim")));
  read_expert_layers(hub, 1, keys);
  read_experts_of_deepseek3(hub, {.groups = 1, .scaling = 1.8}, keys);
}

void write_glm4_moe_lite(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_latent_attention(model, hub);
  write_expert_layers(model, hub);
  write_experts_of_deepseek3(config, model, hub);
  write_predictions(model, hub);
}

bool writes_glm4_moe_lite(const ModelConfig& model) {
  return model.moe().score == RouterScore::sigmoid && !model.has_indexer();
}

using nlohmann::json;

void add_glm4_moe(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  config["use_qk_norm"] = has_tensor(file, "blk.0.attn_q_norm.weight");
  add_rotated_share(metadata, config);
  add_experts_of_deepseek(metadata, config);
}

constexpr GgufArchitecture kGlm4Gguf[] = {
    {.name = "glm4moe",
     .type = "glm4_moe",
     .tensors = {&kSecondNormName, 1},
     .gating = kGgufSigmoid,
     .rotates_part = true,
     .add = add_glm4_moe},
};

}  // namespace

const ModelFamily kGlm4Moe{.type = "glm4_moe",
                           .architecture = "Glm4MoeForCausalLM",
                           .block = &kGlm4Block,
                           .tensors = {},
                           .fused = kExpertsInMemory,
                           .predictions = PredictionForm::numbered,
                           .fields = {.read = kGlm4Read, .more = {&kExpertsOfDeepseek3Fields}},
                           .gguf = kGlm4Gguf,
                           .read = read_glm4_moe,
                           .write = write_glm4_moe,
                           .writes = writes_glm4_moe};
const ModelFamily kGlm4MoeLite{
    .type = "glm4_moe_lite",
    .architecture = "Glm4MoeLiteForCausalLM",
    .block = &kGlm4LiteBlock,
    .tensors = {},
    .fused = kExpertsInMemory,
    .predictions = PredictionForm::numbered,
    .fields = {.read = kGlm4LiteRead, .more = {&kLatentFields, &kExpertsOfDeepseek3Fields}},
    .read = read_glm4_moe_lite,
    .write = write_glm4_moe_lite,
    .writes = writes_glm4_moe_lite};

}  // namespace switchyard
