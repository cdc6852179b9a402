#include "models/same_model.h"

#include "config/declaration.h"
#include "core/error.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

using nlohmann::json;

Config in_float32(std::map<std::string, json> keys) {
  keys["dtype"] = keys["weight_dtype"] = "float32";
  keys["run_name"] = "weights";  // not the time: what is made of the same weights is the same
  return Config::from_map(keys, {});
}

}  // namespace

std::map<std::string, json> model_keys_of_stored(const json& resolved, const std::string& path) {
  if (!resolved.is_object()) fail_usage("[config] {}: expected the keys of a run as an object", path);
  std::map<std::string, json> keys;
  for (const KeyDeclaration& key : all_keys()) {
    if (key.role != KeyRole::model || key.status != KeyStatus::active || !resolved.contains(key.name))
      continue;
    // A key at its default counts as not given by the user: some checks ask for that.
    if (resolved[key.name] != key.default_value) keys[key.name] = resolved[key.name];
  }
  if (resolved.value("routed_score_func", json()) == "sigmoid" && resolved.contains("norm_topk_prob"))
    keys["norm_topk_prob"] = resolved["norm_topk_prob"];
  // Keeps the stored values of keys whose default comes from the block (ConfigBuilder::derive_block).
  for (const char* key : {"use_qk_norm", "attention_output_bias"}) {
    if (resolved.contains(key)) keys[key] = resolved[key];
  }
  return keys;
}

Config config_of_stored(const json& resolved, const std::string& path) {
  return in_float32(model_keys_of_stored(resolved, path));
}

Config config_of_hub(const json& hub_config, std::int64_t predictions, const std::string& compat) {
  std::map<std::string, json> keys = config_from_hub(hub_config, predictions);
  keys["compat"] = compat;
  return in_float32(std::move(keys));
}

}  // namespace switchyard
