#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "models/families/common.h"

namespace switchyard {
namespace {

const ModelFamily* const kFamilies[] = {&kLlama,      &kMistral, &kMixtral, &kDeepseekV2,  &kDeepseekV3,
                                        &kKimiK2,     &kQwen3,   &kQwen3Moe, &kQwen3CustomMoe, &kGlm4Moe,
                                        &kGlm4MoeLite, &kMinimaxM2};

// "a, b or c"; a name that several families have counts once.
std::string listed(std::string_view (*name)(const ModelFamily&)) {
  std::vector<std::string_view> names;
  for (const ModelFamily* family : kFamilies) {
    const std::string_view one = name(*family);
    if (!one.empty() && std::find(names.begin(), names.end(), one) == names.end()) names.push_back(one);
  }
  const std::string_view last = names.back();
  names.pop_back();
  return fmt::format("{} or {}", fmt::join(names, ", "), last);
}

}  // namespace

const DecoderBlock& decoder_block(const std::string& name) {
  for (const ModelFamily* family : kFamilies) {
    if (family->block->name == name) return *family->block;
  }
  fail_usage("[model] decoder_block={}: expected {}", name,
             listed([](const ModelFamily& family) { return family.block->name; }));
}

const ModelFamily& family_of(const nlohmann::json& hub_config) {
  const std::string type = HubConfig(hub_config).type();
  for (const ModelFamily* family : kFamilies) {
    if (!type.empty() && family->type == type) return *family;
  }
  fail_usage("[hub config] model_type={}: expected {}", in_quotes(type),
             listed([](const ModelFamily& family) { return family.type; }));
}

const ModelFamily& family_to_write(const Config& config, const ModelConfig& model) {
  const std::string& block = config.get_string("decoder_block");
  for (const ModelFamily* family : kFamilies) {
    if (family->block->name == block && !family->type.empty() && family->writes(model)) return *family;
  }
  fail_usage("[convert] decoder_block={}: no Hugging Face model has this layer", block);
}

ConfigKeys config_from_hub(const nlohmann::json& hub_config) {
  const ModelFamily& family = family_of(hub_config);
  const HubConfig hub(hub_config);
  ConfigKeys keys;
  read_common(hub, keys);
  keys["decoder_block"] = family.block->name;
  family.read(hub, keys);
  if (keys.contains("num_experts_per_tok") && keys["num_experts_per_tok"] > keys["num_experts"])
    hub.wrong("num_experts_per_tok", "at most the number of experts");
  return keys;
}

}  // namespace switchyard
