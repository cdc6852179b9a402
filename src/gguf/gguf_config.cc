// A GGUF file's metadata as the config.json that transformers would have for its model.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/architectures.h"
#include "gguf/gguf_weights.h"

namespace switchyard {
namespace {

using nlohmann::json;

// By what linear scaling divides all frequencies; files from before 2023-10 name it otherwise.
double linear_factor(const GgufMetadata& metadata) {
  for (const char* key : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (!metadata.has(key)) continue;
    const double factor = metadata.number(key);
    if (factor == 0) continue;  // as if it were not there
    if (!(factor > 0)) metadata.wrong(key, "more than 0");
    return factor;
  }
  return 1;
}

json rope_of(const GgufMetadata& metadata) {
  json rope{{"rope_theta", metadata.number("rope.freq_base", 10000)}, {"rope_type", "default"}};
  // These multiply what is rotated, or set how YaRN goes from one scale to the other.
  for (const char* key :
       {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"})
    if (metadata.number(key, 1) != 1) metadata.wrong(key, "1; other values are not supported");
  // A factor without a type is linear.
  const std::string scaling =
      metadata.has("rope.scaling.type") ? metadata.text("rope.scaling.type") : "linear";
  if (scaling == "none" || scaling == "linear") return rope;
  if (scaling != "yarn") metadata.wrong("rope.scaling.type", "none, linear or yarn");
  rope["rope_type"] = "yarn";
  rope["factor"] = metadata.number("rope.scaling.factor");
  rope["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length");
  if (metadata.has("rope.scaling.yarn_log_multiplier")) {
    // A tenth of mscale_all_dim, which equals mscale in all models that have both.
    const double mscale = metadata.number("rope.scaling.yarn_log_multiplier") * 10;
    rope["mscale"] = rope["mscale_all_dim"] = mscale;
  }
  if (metadata.has("rope.scaling.yarn_beta_fast"))
    rope["beta_fast"] = metadata.number("rope.scaling.yarn_beta_fast");
  if (metadata.has("rope.scaling.yarn_beta_slow"))
    rope["beta_slow"] = metadata.number("rope.scaling.yarn_beta_slow");
  return rope;
}

// The factors of a model with pairs of its own: linear scaling, and those of rope_freqs.weight, one a pair
// of the dims that are rotated.
void add_divisors(const GgufFile& file, const GgufMetadata& metadata, const GgufArchitecture& architecture,
                  std::int64_t rotated, json& rope) {
  constexpr const char* kFactors = "rope_freqs.weight";
  const bool linear = !metadata.has("rope.scaling.type") || metadata.text("rope.scaling.type") == "linear";
  const double all = linear ? linear_factor(metadata) : 1;
  if (!file.entries().contains(kFactors) && all == 1) return;
  std::vector<double> divisors(static_cast<std::size_t>(rotated / 2), all);
  if (file.entries().contains(kFactors)) {
    if (!architecture.rope_factors)
      fail_usage("[gguf] {}: has {}, which models of the architecture {} cannot have", file.path(), kFactors,
                 architecture.name);
    if (rope.at("rope_type") != "default")
      fail_usage("[gguf] {}: has {} beside rope.scaling.type={}, expected one of them", file.path(), kFactors,
                 metadata.text("rope.scaling.type"));
    const Tensor factors = file.read(kFactors);
    if (factors.shape() != Shape{rotated / 2})
      fail_usage("[gguf] {}: tensor {} is {}, expected a number for each of {} pairs", file.path(),
                 in_quotes(kFactors), to_string(factors.shape()), rotated / 2);
    for (std::size_t i = 0; i < divisors.size(); ++i) {
      const float factor = factors.data<float>()[i];
      if (!(factor > 0) || !std::isfinite(factor))
        fail_usage("[gguf] {}: tensor {} has {}, expected numbers above 0", file.path(), in_quotes(kFactors),
                   factor);
      divisors[i] *= static_cast<double>(factor);
    }
  }
  rope["frequency_divisors"] = divisors;
}

// The biases of attention, which no key states: "inputs" are those of queries, keys and
// values, or of the latents.
const char* attention_biases_of(const GgufFile& file) {
  const auto has = [&](std::initializer_list<std::string_view> ends) {
    return std::ranges::any_of(file.entries(), [&](const auto& entry) {
      return std::ranges::any_of(ends, [&](std::string_view end) { return entry.first.ends_with(end); });
    });
  };
  if (!has({".attn_q.bias", ".attn_k.bias", ".attn_v.bias", ".attn_q_a.bias", ".attn_kv_a_mqa.bias"}))
    return "none";
  return has({".attn_output.bias"}) ? "inputs and output" : "inputs";
}

}  // namespace

json hub_config_of(const GgufFile& file, std::string* notice) {
  const GgufArchitecture& architecture = architecture_of(file);
  const GgufMetadata metadata(file, std::string(architecture.name));
  // The first layer's, where layers differ.
  const auto number_of_heads = [&](const char* key) {
    return architecture.heads_by_layer ? metadata.integers(key, 1).front() : metadata.integer(key);
  };
  const std::int64_t heads = number_of_heads("attention.head_count"),
                     width = metadata.integer("embedding_length"),
                     predictions = metadata.integer("nextn_predict_layers", 0),
                     blocks = metadata.integer("block_count");
  const double epsilon = metadata.number("attention.layer_norm_rms_epsilon");
  if (epsilon < 0) metadata.wrong("attention.layer_norm_rms_epsilon", "0 or more");
  constexpr std::int64_t kMostBlocks = 1 << 16;  // some settings become a list of so many
  if (blocks > kMostBlocks) metadata.wrong("block_count", fmt::format("at most {}", kMostBlocks));
  // Prediction layers are the last blocks.
  if (predictions > 0 && predictions >= blocks)
    metadata.wrong("nextn_predict_layers", fmt::format("fewer than the {} blocks", blocks));
  json config{{"hidden_size", width},
              {"num_attention_heads", heads},
              {"num_key_value_heads",
               metadata.has("attention.head_count_kv") ? number_of_heads("attention.head_count_kv") : heads},
              {"intermediate_size", metadata.integer("feed_forward_length", 0)},
              {"num_hidden_layers", blocks - predictions},
              {"rms_norm_eps", epsilon},
              {"max_position_embeddings", metadata.integer("context_length")},
              {"vocab_size", file.at("token_embd.weight").shape[0]},
              {"tie_word_embeddings", !file.entries().contains("output.weight")},
              {"hidden_act", "silu"},
              {"rope_parameters", rope_of(metadata)}};
  if (metadata.has("attention.key_length")) config["head_dim"] = metadata.integer("attention.key_length");
  if (metadata.integer("expert_count", 0) > 0)
    config["num_experts_per_tok"] = metadata.integer("expert_used_count");
  const std::int64_t head = config.contains("head_dim") ? config["head_dim"].get<std::int64_t>()
                            : heads > 0                 ? width / heads
                                                        : 0,
                     rotated = metadata.integer("rope.dimension_count", head);
  if (!architecture.rotates_part && rotated != head)
    metadata.wrong("rope.dimension_count", fmt::format("{}, the width of a head", head));
  add_divisors(file, metadata, architecture, rotated, config["rope_parameters"]);
  config["model_type"] = architecture.type;
  if (architecture.add != nullptr) architecture.add(file, metadata, config);
  if (predictions > 0) config["num_nextn_predict_layers"] = predictions;
  config[kGgufAttentionBiases] = attention_biases_of(file);
  const bool latent = config.contains("kv_lora_rank");
  if (!latent && !config.contains("v_head_dim") && metadata.integer("attention.value_length", head) != head)
    metadata.wrong("attention.value_length", fmt::format("{}, the width of a head", head));
  const std::string others = check_other_keys(file, architecture, metadata, config);
  if (notice != nullptr) *notice = others;
  return config;
}

}  // namespace switchyard
