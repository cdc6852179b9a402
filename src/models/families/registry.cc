#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/gguf_weights.h"
#include "models/families/common.h"

namespace switchyard {
namespace {

const ModelFamily* const kFamilies[] = {
#define SWITCHYARD_FAMILY(family) &family,
#include "models/families/list.h"
#undef SWITCHYARD_FAMILY
};

// Lists names as "a, b or c", each once.
std::string listed(const std::vector<std::string_view>& all) {
  std::vector<std::string_view> names;
  for (const std::string_view name : all) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const std::string_view last = names.back();
  names.pop_back();
  if (names.empty()) return std::string(last);
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

bool is_type_of(const ModelFamily& family, const nlohmann::json& type) {
  return type == family.type || (!family.outer_type.empty() && type == family.outer_type);
}

}  // namespace

const std::vector<const DecoderBlock*>& decoder_blocks() {
  static const std::vector<const DecoderBlock*> all = [] {
    std::vector<const DecoderBlock*> blocks;
    const auto add = [&](const DecoderBlock& block) {
      if (std::ranges::find(blocks, &block) == blocks.end()) blocks.push_back(&block);
    };
#define SWITCHYARD_FAMILY(family) add(*(family).block);
#define SWITCHYARD_BLOCK(block) add(block);
#include "models/families/list.h"
#undef SWITCHYARD_BLOCK
#undef SWITCHYARD_FAMILY
    return blocks;
  }();
  return all;
}

const DecoderBlock& decoder_block(const std::string& name) {
  std::vector<std::string_view> names;
  for (const DecoderBlock* block : decoder_blocks()) {
    if (block->name == name) return *block;
    names.push_back(block->name);
  }
  fail_usage("[model] decoder_block={}: expected {}", name, listed(names));
}

std::string blocks_with(bool DecoderBlock::*feature) {
  std::vector<std::string_view> names;
  for (const DecoderBlock* block : decoder_blocks()) {
    if (block->*feature) names.push_back(block->name);
  }
  return listed(names);
}

std::span<const ModelFamily* const> model_families() {
  return kFamilies;
}

std::span<const GgufArchitecture* const> gguf_architectures() {
  static const std::vector<const GgufArchitecture*> all = [] {
    std::vector<const GgufArchitecture*> rows;
    for (const ModelFamily* family : kFamilies)
      for (const GgufArchitecture& row : family->gguf) rows.push_back(&row);
    return rows;
  }();
  return all;
}

const ModelFamily* find_family(const nlohmann::json& hub_config) {
  const auto type = hub_config.find("model_type");
  for (const ModelFamily* family : kFamilies) {
    if (type != hub_config.end() && is_type_of(*family, *type)) return family;
  }
  return nullptr;
}

nlohmann::json decoder_part(const nlohmann::json& hub_config) {
  const ModelFamily* const family = find_family(hub_config);
  nlohmann::json decoder = hub_config;
  if (family == nullptr) return decoder;
  if (!family->outer_type.empty() && hub_config.at("model_type") == family->outer_type) {
    const auto part = hub_config.find("text_config");
    if (part == hub_config.end()) fail_usage("[hub config] text_config is missing");
    if (!part->is_object()) HubConfig(hub_config).wrong("text_config", "an object");
    decoder = *part;
    decoder["model_type"] = family->type;
    // The whole model's word counts: its class ties the head, and reads the files.
    for (const char* key : {"quantization_config", "tie_word_embeddings", "dtype", "torch_dtype"}) {
      if (hub_config.contains(key)) decoder[key] = hub_config[key];
    }
  }
  for (const auto& [there, here] : family->other_names) {
    if (!HubConfig(decoder).has(there)) continue;
    if (HubConfig(decoder).has(here) && decoder[here] != decoder[there])
      HubConfig(decoder).wrong(there, fmt::format("none, or {}={}", here, decoder[here].dump()));
    decoder[here] = decoder[there];
    decoder.erase(there);
  }
  if (family->only_experts && decoder.value("intermediate_size", nlohmann::json()).is_null() &&
      decoder.contains("moe_intermediate_size"))
    decoder["intermediate_size"] = decoder["moe_intermediate_size"];
  return decoder;
}

const ModelFamily& family_of(const nlohmann::json& hub_config) {
  const std::string type = HubConfig(hub_config).type();
  std::vector<std::string_view> types;
  for (const ModelFamily* family : kFamilies) {
    if (is_type_of(*family, type)) return *family;
    types.push_back(family->type);
    if (!family->outer_type.empty()) types.push_back(family->outer_type);
  }
  fail_usage("[hub config] model_type={}: expected {}", in_quotes(type), listed(types));
}

const ModelFamily* find_family_to_write(const Config& config, const ModelConfig& model) {
  const std::string& block = config.get_string("decoder_block");
  for (const ModelFamily* family : kFamilies) {
    if (family->block->name == block && family->writes(model)) return family;
  }
  return nullptr;
}

const ModelFamily& family_to_write(const Config& config, const ModelConfig& model) {
  const ModelFamily* family = find_family_to_write(config, model);
  if (family == nullptr)
    fail_usage("[convert] decoder_block={}: no Hugging Face model has this layer",
               config.get_string("decoder_block"));
  return *family;
}

HubJson hub_config_to_write(const Config& config, const ModelConfig& model) {
  const ModelFamily& family = family_to_write(config, model);
  HubJson hub{{"architectures", {family.architecture}}, {"model_type", family.type}};
  hub.update(write_common(config, model));
  family.write(config, model, hub);
  return hub;
}

std::int64_t predictions_in(const nlohmann::json& hub_config,
                            const std::function<bool(const std::string& tensor)>& contains) {
  const ModelFamily* const family = find_family(hub_config);
  if (family == nullptr || family->predictions == PredictionForm::none) return 0;
  const bool mtp = family->predictions == PredictionForm::mtp;
  const nlohmann::json decoder = decoder_part(hub_config);
  const HubConfig hub(decoder);
  const std::int64_t stated = hub.integer("num_nextn_predict_layers", mtp ? 1 : 0);
  if (stated <= 0 || (mtp && (stated > 1 || hub.flag("mtp_use_dedicated_embeddings", false)))) return 0;
  const std::string first = fmt::format("model.layers.{}.", hub.positive("num_hidden_layers"));
  for (const char* tensor : {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"}) {
    if (!contains(first + tensor)) return 0;
  }
  return stated;
}

ConfigKeys config_from_hub(const nlohmann::json& hub_config, std::int64_t predictions) {
  const ModelFamily& family = family_of(hub_config);
  const nlohmann::json decoder = decoder_part(hub_config);
  const HubConfig hub(decoder);
  ConfigKeys keys;
  check_fields(hub, family);
  read_common(hub, keys);
  keys["decoder_block"] = family.block->name;
  family.read(hub, keys);
  if (const std::string biases = hub.text(kGgufAttentionBiases, ""); !biases.empty()) {
    keys["attention_bias"] = biases != "none";
    if (biases != "none") keys["attention_output_bias"] = biases == "inputs and output";
  }
  if (!keys.contains("sliding_window_size"))
    keys.contains("use_indexer") ? refuse_windows(hub, "indexed_attention") : refuse_windows(hub);
  if (keys.contains("num_experts_per_tok") && keys["num_experts_per_tok"] > keys["num_experts"])
    hub.wrong("num_experts_per_tok", "at most the number of experts");
  if (predictions > 0) {
    keys["mtp_num_layers"] = predictions;
    keys["mtp_own_norm"] = true;
    if (family.predictions == PredictionForm::mtp) keys["mtp_reads_final_norm"] = true;
  }
  return keys;
}

}  // namespace switchyard
