#include "cli/stored_model_command.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/process_command.h"
#include "core/error.h"
#include "generate/stored_model.h"
#include "models/packed_parameters.h"
#include "train/initial_weights.h"
#include "train/session.h"

namespace switchyard {
namespace {

Config config_of(const std::string& command, const Processes& processes,
                 std::span<const std::string> settings) {
  const bool from_folder = !settings.empty() && is_stored_model(settings[0]);
  if (!from_folder) {
    if (!settings.empty() && std::filesystem::is_directory(settings[0]))
      fail_usage(
          "[{}] {}: expected a Hugging Face model, a checkpoint, or the folder of a run that has one (train "
          "with enable_checkpointing=true)",
          command, settings[0]);
    return config_for(processes, settings, Config::from_args);
  }
  const std::map<std::string, nlohmann::json> keys = keys_of_stored_model(settings[0]);
  return config_for(processes, settings.subspan(1),
                    [&](std::span<const std::string> s) { return Config::from_map(keys, s); });
}

}  // namespace

Parameters ModelToRun::load(Context& context) const {
  return Parameters::create_from_blocks(context, stage_specs(specs, context.stage, model), model.init_seed,
                                        fill, nullptr);
}

ModelToRun model_to_run(const std::string& command, const Processes& processes,
                        std::span<const std::string> settings) {
  Config config = config_of(command, processes, settings);
  std::vector<std::string> notes = config.notices();
  if (!config.is_set_by_user("weight_dtype"))
    config.set("weight_dtype", config.get_string("dtype"), command + ": no optimizer needs them in another");
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, processes);
  const ModelConfig model = model_config(config);
  const std::string type = config.get_string("tokenizer_type"), path = config.get_string("tokenizer_path");
  if (type != "byte" && path.empty())
    fail_usage("[{}] tokenizer_path: expected the model's tokenizer, got none (or tokenizer_type=byte)",
               command);
  std::vector<ParameterSpec> specs =
      specs_as_stored(config, mesh, model, specs_to_run(config, model, &notes), &notes);
  ModelToRun run{config, mesh, model, std::move(specs), make_tokenizer(type, path), std::move(notes), {}};
  run.fill = initial_weights(config, model, run.specs, &run.notes);
  if (!run.fill) run.notes.push_back("random weights: load_parameters_path is not set");
  return run;
}

}  // namespace switchyard
