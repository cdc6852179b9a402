#include "convert/hub_export.h"

#include <string>

#include "config/value.h"
#include "core/error.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// MLA scales its scores here when the context is stretched beyond the original, in transformers with YaRN.
void check_latent_scale(const Config& config, const ModelConfig& model) {
  const std::int64_t most = config.get_int("max_position_embeddings");
  const bool ours = most > model.attention().rope.original_positions && model.attention().rope.factor > 1;
  const bool theirs = model.attention().rope.type == "yarn" && model.attention().rope.factor > 1;
  if (!model.attention().mla || config.get_float("mscale") == 0 || ours == theirs) return;
  fail_usage(
      "[convert] max_position_embeddings={}, original_max_position_embeddings={}: no Hugging Face form with "
      "rope_type={}; MLA's scores are {}scaled here",
      most, model.attention().rope.original_positions, model.attention().rope.type, ours ? "" : "not ");
}

// Reads the file back as anyone else would: what it cannot say shows as a difference.
void check_same_model(const Config& config, const ModelConfig& model, const HubJson& hub) {
  const std::string type = hub["model_type"].get<std::string>();
  const nlohmann::json written(hub);
  const std::int64_t predictions =
      predictions_in(written, [&](const std::string&) { return model.predictions > 0; });
  const std::string key = differing_key(model, model_config(config_of_hub(written, predictions)));
  if (key.empty()) return;
  fail_usage("[convert] {}={}: no Hugging Face form; a {} model cannot state it", key,
             value_text(config.resolved()[key]), type);
}

}  // namespace

nlohmann::ordered_json config_to_hub(const Config& config, const std::string& dtype) {
  const ModelConfig model = model_config(config);
  check_latent_scale(config, model);
  HubJson hub = hub_config_to_write(config, model);
  hub["torch_dtype"] = dtype;
  check_same_model(config, model, hub);
  return hub;
}

}  // namespace switchyard
