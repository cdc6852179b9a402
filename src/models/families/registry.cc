#include <fmt/ranges.h>

#include <vector>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "models/families/common.h"

namespace switchyard {
namespace {

const ModelFamily* const kFamilies[] = {&kLlama,      &kMistral, &kMixtral, &kDeepseekV2,
                                        &kDeepseekV3, &kKimiK2,  &kQwen3,   &kQwen3Moe};

}  // namespace

std::span<const ModelFamily* const> model_families() {
  return kFamilies;
}

const ModelFamily& family_of(const nlohmann::json& hub_config) {
  const std::string type = HubConfig(hub_config).type();
  std::vector<std::string_view> types;
  for (const ModelFamily* family : kFamilies) {
    if (family->type == type) return *family;
    types.push_back(family->type);
  }
  const std::string_view last = types.back();
  types.pop_back();
  fail_usage("[hub config] model_type={}: expected {} or {}", in_quotes(type), fmt::join(types, ", "), last);
}

const ModelFamily* find_family_to_write(const Config& config, const ModelConfig& model) {
  const std::string& block = config.get_string("decoder_block");
  for (const ModelFamily* family : kFamilies) {
    if (family->decoder_block == block && family->writes(model)) return family;
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

ConfigKeys config_from_hub(const nlohmann::json& hub_config) {
  const ModelFamily& family = family_of(hub_config);
  const HubConfig hub(hub_config);
  ConfigKeys keys;
  read_common(hub, keys);
  keys["decoder_block"] = family.decoder_block;
  family.read(hub, keys);
  if (keys.contains("num_experts_per_tok") && keys["num_experts_per_tok"] > keys["num_experts"])
    hub.wrong("num_experts_per_tok", "at most the number of experts");
  return keys;
}

}  // namespace switchyard
