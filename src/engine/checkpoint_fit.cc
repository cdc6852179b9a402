#include "engine/checkpoint_fit.h"

#include <fmt/format.h>

#include "config/declaration.h"
#include "core/error.h"
#include "core/json_file.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// Compares models, as a converted checkpoint describes the same model by other keys, or by more.
void check_model_of_checkpoint(const Config& config, const CheckpointFolder& checkpoint, const char* advice) {
  // A key at its default may have been given or not, which only the run knows: the same keys are one model.
  if (model_keys_of_stored(checkpoint.manifest().config, checkpoint.path()) ==
      model_keys_of_stored(config.resolved(), "this run"))
    return;
  check_same_model(config, model_config(config),
                   config_of_stored(checkpoint.manifest().config, checkpoint.path()),
                   fmt::format("[checkpoint] {}: made with", checkpoint.path()), advice);
}

const char* kAdvice = "make them equal, or set another run_name to start anew";
const char* kWeightsAdvice = "make them equal";

}  // namespace

void for_other_values(const Config& config, const CheckpointFolder& checkpoint,
                      const std::function<bool(const KeyDeclaration& key)>& chosen,
                      const std::function<void(const std::string& key, const std::string& stored,
                                               const std::string& own)>& each) {
  const nlohmann::json own = config.resolved();
  for (const KeyDeclaration& key : all_keys()) {
    const auto stored = checkpoint.manifest().config.find(key.name);
    if (key.status != KeyStatus::active || !chosen(key) || stored == checkpoint.manifest().config.end() ||
        *stored == own[key.name])
      continue;
    each(key.name, stored->dump(), own[key.name].dump());
  }
}

void check_same_model(const Config& config, const ModelConfig& own, const Config& stored,
                      const std::string& made_with, const std::string& advice) {
  const ModelConfig theirs = model_config(stored);
  const ArchitectureField* const field = differing_field(theirs, own);
  if (field == nullptr) return;
  const auto fail = [&](const char* name, const nlohmann::json& before, const nlohmann::json& now) {
    fail_usage("{} {}={}, this run has {}={}; {}", made_with, name, before.dump(), name, now.dump(), advice);
  };
  const nlohmann::json before = stored.resolved(), now = config.resolved();
  const auto fail_if_other = [&](const char* key) {
    if (before[key] != now[key]) fail(key, before[key], now[key]);
  };
  fail_if_other(field->key);
  // Another key decides the field too, such as base_mlp_dim where base_moe_mlp_dim is not set: first those
  // whose own field differs, for a key may be another that says the same.
  for (const ArchitectureField& other : architecture_fields()) {
    if (value_of(other, theirs) != value_of(other, own)) fail_if_other(other.key);
  }
  for (const ArchitectureField& other : architecture_fields()) fail_if_other(other.key);
  fail(field->name, value_of(*field, theirs), value_of(*field, own));
}

void check_fits(const Config& config, const CheckpointFolder& checkpoint,
                const std::vector<StoredTensor>& needed, Fit fit) {
  const char* advice = fit == Fit::state ? kAdvice : kWeightsAdvice;
  check_model_of_checkpoint(config, checkpoint, advice);
  if (fit == Fit::state) {
    const auto is_fixed = [](const KeyDeclaration& key) { return key.on_resume == OnResume::refused; };
    for_other_values(config, checkpoint, is_fixed,
                     [&](const std::string& key, const std::string& stored, const std::string& own) {
                       fail_usage("[checkpoint] {}: made with {}={}, this run has {}={}; {}",
                                  checkpoint.path(), key, stored, key, own, advice);
                     });
  }
  for (const StoredTensor& tensor : needed) {
    if (!checkpoint.contains(tensor.name)) {
      fail_usage("[checkpoint] {}: has no tensor {}{}", checkpoint.path(), in_quotes(tensor.name),
                 tensor.optimizer ? "; it holds weights only: start from it with load_parameters_path" : "");
    }
    const ManifestTensor& stored = checkpoint.tensor(tensor.name);
    const bool same_type =
        fit == Fit::weights && is_float(tensor.dtype) ? is_float(stored.dtype) : stored.dtype == tensor.dtype;
    if (stored.shape != tensor.shape || !same_type) {
      fail_usage("[checkpoint] {}: tensor {} is {} {}, this run needs {} {}", checkpoint.path(),
                 in_quotes(tensor.name), name_of(stored.dtype), to_string(stored.shape),
                 name_of(tensor.dtype), to_string(tensor.shape));
    }
  }
}

}  // namespace switchyard
