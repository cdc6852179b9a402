// DeepSeek-V3.2 (deepseek_v32) and GLM-5 (glm_moe_dsa): DeepSeek-V3 with indexers. GLM-5's indexer rotates
// neighbours; some layers of GLM-5.2 have none, and take the keys that the last layer with one chose.
//
// A layer is DeepSeek-V3's, but that a query attends to the T keys of the largest index score alone:
//   qi = rope of Wi c a head, ki = rope of layernorm(Wk n(x)), one for all heads, g = Ww n(x) a head
//   score(t, s) = sum over heads of g · max(0, qi(t)·ki(s)) · (heads · width)^-1/2
#include <fmt/format.h>

#include <algorithm>

#include "models/families/deepseek.h"
#include "models/families/gguf_settings.h"

namespace switchyard {
namespace {

constexpr std::string_view kIndexedRead[] = {"index_n_heads", "index_head_dim", "index_topk",
                                             "mlp_layer_types"};
constexpr FixedField kIndexedRefused[] = {{"rope_interleave", "true"}};
// The attention of both.
constexpr HubFields kIndexedFields{
    .read = kIndexedRead, .refused = kIndexedRefused, .more = {&kLatentFields}};
constexpr std::string_view kGlmDsaRead[] = {"indexer_types", "index_topk_freq", "index_topk_pattern",
                                            "index_skip_topk_offset"};
constexpr FixedField kGlmDsaRefused[] = {{"indexer_rope_interleave", "true"}};

void read_indexed_attention(const HubConfig& hub, bool interleaved, ConfigKeys& keys) {
  read_rope(hub, {.latent = true, .usual_theta = 10000}, keys);
  read_latent_attention(hub, keys);
  keys["q_lora_rank"] = hub.positive("q_lora_rank");
  keys["use_indexer"] = true;
  keys["indexer_n_heads"] = hub.positive("index_n_heads");
  keys["indexer_head_dim"] = hub.positive("index_head_dim");
  keys["indexer_topk"] = hub.positive("index_topk");
  keys["indexer_rope_interleave"] = interleaved;
}

// The number of dense layers of a file that does not state one.
constexpr std::int64_t kUsualDenseLayers = 3;

void read_deepseek_v32(const HubConfig& hub, ConfigKeys& keys) {
  read_indexed_attention(hub, false, keys);
  read_expert_layers(hub, kUsualDenseLayers, keys);
  read_experts_of_deepseek3(hub, {}, keys);
}

// The layers without an indexer of their own, which take the choice of the last layer before with one:
// indexer_types, or letters F (full) and S (shared), or of each index_topk_freq layers all but one.
nlohmann::json layers_that_share(const HubConfig& hub) {
  const std::int64_t layers = hub.positive("num_hidden_layers");
  nlohmann::json numbers = nlohmann::json::array();
  const char* key = "indexer_types";
  if (hub.has(key)) {
    numbers = layers_that_are(hub, key, "shared", "full");
  } else if (hub.has("index_topk_pattern")) {
    key = "index_topk_pattern";
    const std::string letters = hub.text(key, "");
    if (std::ssize(letters) != layers || letters.find_first_not_of("FS") != std::string::npos)
      hub.wrong(key, fmt::format("a letter F or S for each of {} layers", layers));
    for (std::size_t i = 0; i < letters.size(); ++i) {
      if (letters[i] == 'S') numbers.push_back(i);
    }
  } else {
    key = "index_topk_freq";
    const std::int64_t every = std::max<std::int64_t>(1, hub.integer(key, 1)),
                       offset = hub.integer("index_skip_topk_offset", 2);
    for (std::int64_t i = 0; i < layers; ++i) {
      if (std::max<std::int64_t>(i - offset + 1, 0) % every != 0) numbers.push_back(i);
    }
  }
  if (!numbers.empty() && numbers.front() == 0) hub.wrong(key, "an indexer in the first layer");
  return numbers;
}

void read_glm_moe_dsa(const HubConfig& hub, ConfigKeys& keys) {
  read_indexed_attention(hub, true, keys);
  read_expert_layers(hub, kUsualDenseLayers, keys);
  read_experts_of_deepseek3(hub, {.groups = 1}, keys);
  if (const nlohmann::json shared = layers_that_share(hub); !shared.empty())
    keys["shared_choice_layers"] = shared;
}

void write_indexed(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_latent_attention(model, hub);
  hub["index_n_heads"] = model.attention().indexer_heads;
  hub["index_head_dim"] = model.attention().indexer_dim;
  hub["index_topk"] = model.attention().indexer_topk;
  HubJson kinds = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i)
    kinds.push_back(model.layer(i).has_experts() ? "sparse" : "dense");
  hub["mlp_layer_types"] = kinds;
  hub["first_k_dense_replace"] = model.moe_layers().empty() ? model.layers : model.moe_layers().front();
  hub["moe_layer_freq"] = 1;
  write_predictions(model, hub);
  write_experts_of_deepseek3(config, model, hub);
}

void write_glm_moe_dsa(const Config& config, const ModelConfig& model, HubJson& hub) {
  write_indexed(config, model, hub);
  hub["indexer_rope_interleave"] = true;
  HubJson kinds = HubJson::array();
  for (std::int64_t i = 0; i < model.layers; ++i)
    kinds.push_back(model.layer(i).choice_of >= 0 ? "shared" : "full");
  hub["indexer_types"] = kinds;
}

bool is_indexed(const ModelConfig& model) {
  return model.has_indexer() && model.moe().score == RouterScore::sigmoid &&
         model.attention().rope.interleaved;
}
bool writes_deepseek_v32(const ModelConfig& model) {
  const bool shares =
      std::ranges::any_of(model.layer_specs, [](const LayerSpec& l) { return l.choice_of >= 0; });
  return is_indexed(model) && !shares && !model.attention().indexer_interleaved;
}
bool writes_glm_moe_dsa(const ModelConfig& model) {
  return is_indexed(model) && model.attention().indexer_interleaved;
}

using nlohmann::json;

constexpr GgufName kIndexerNames[] = {
    {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
    {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
    {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
    {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
};

// DeepSeek-V3.2, and GLM-5 with layers that share a choice of keys.
void add_indexed(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  add_deepseek(file, metadata, config);
  config["index_n_heads"] = metadata.integer("attention.indexer.head_count");
  config["index_head_dim"] = metadata.integer("attention.indexer.key_length");
  config["index_topk"] = metadata.integer("attention.indexer.top_k");
}

void add_glm_dsa(const GgufFile& file, const GgufMetadata& metadata, json& config) {
  constexpr const char* kTypes = "attention.indexer.types";  // true: an indexer
  add_indexed(file, metadata, config);
  if (!metadata.has(kTypes)) return;
  for (const bool full : metadata.flags(kTypes, config["num_hidden_layers"].get<std::int64_t>()))
    config["indexer_types"].push_back(full ? "full" : "shared");
}

constexpr GgufArchitecture kDeepseekV32Gguf[] = {
    {.name = "deepseek32",
     .type = "deepseek_v32",
     .tensors = kIndexerNames,
     .rotates_part = true,
     .add = add_indexed},
};
constexpr GgufArchitecture kGlmDsaGguf[] = {
    {.name = "glm-dsa",
     .type = "glm_moe_dsa",
     .tensors = kIndexerNames,
     .rotates_part = true,
     .add = add_glm_dsa},
};

}  // namespace

const ModelFamily kDeepseekV32{.type = "deepseek_v32",
                               .architecture = "DeepseekV32ForCausalLM",
                               .block = &kDeepseekBlock,
                               .tensors = {},
                               .fused = kExpertsInMemory,
                               .predictions = PredictionForm::numbered,
                               .fields = {.more = {&kIndexedFields, &kExpertsOfDeepseek3Fields}},
                               .gguf = kDeepseekV32Gguf,
                               .read = read_deepseek_v32,
                               .write = write_indexed,
                               .writes = writes_deepseek_v32,
                               .restate = restate_router_bias};
const ModelFamily kGlmMoeDsa{.type = "glm_moe_dsa",
                             .architecture = "GlmMoeDsaForCausalLM",
                             .block = &kDeepseekBlock,
                             .tensors = {},
                             .fused = kExpertsInMemory,
                             .predictions = PredictionForm::numbered,
                             .fields = {.read = kGlmDsaRead,
                                        .refused = kGlmDsaRefused,
                                        .more = {&kIndexedFields, &kExpertsOfDeepseek3Fields}},
                             .gguf = kGlmDsaGguf,
                             .read = read_glm_moe_dsa,
                             .write = write_glm_moe_dsa,
                             .writes = writes_glm_moe_dsa,
                             .restate = restate_router_bias};

}  // namespace switchyard
