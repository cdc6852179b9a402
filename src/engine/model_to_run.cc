#include "engine/model_to_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "engine/initial_weights.h"
#include "engine/session.h"
#include "engine/stored_model.h"
#include "routing/routing_keys.h"

namespace switchyard {
namespace {

std::int64_t values_in(const ParameterSpec& spec, const Shape& shape) {
  return num_elements(shape) * (is_packed(spec.dtype) ? block_values(spec.dtype) : 1);
}

// How many of the weights the first rank has come to: they are read in the order of their list.
class LoadCount {
 public:
  LoadCount(const std::vector<ParameterSpec>& specs, const LoadProgress& progress) : progress_(progress) {
    for (const ParameterSpec& spec : specs) {
      before_[spec.name] = all_;
      all_ += values_in(spec, spec.shape);
    }
  }

  void read(const ParameterSpec& spec, const Box& block) {
    if (spec.name != name_) {
      name_ = spec.name;
      read_ = 0;
    }
    read_ = std::min(read_ + values_in(spec, block.shape), values_in(spec, spec.shape));
    progress_(before_.at(name_) + read_, all_);
  }

 private:
  const LoadProgress& progress_;
  std::map<std::string, std::int64_t> before_;  // of each parameter
  std::int64_t all_ = 0;
  std::string name_;       // of the one that is being read
  std::int64_t read_ = 0;  // of it
};

}  // namespace

Config config_to_run(const std::string& command, const Processes& processes,
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

Parameters ModelToRun::load(Context& context, const LoadProgress& progress) const {
  std::vector<ParameterSpec> here = stage_specs(specs, context.stage, model);
  const auto create = [&](const Parameters::FillBlock& from) {
    return Parameters::create_from_blocks(context, here, model.init_seed, from, nullptr);
  };
  const bool packs = std::any_of(here.begin(), here.end(), [](const auto& s) { return is_packed(s.dtype); });
  if (!fill || !packs || !progress || context.comm->rank() != 0) return create(fill);
  LoadCount count(here, progress);
  return create([&](const ParameterSpec& spec, const Box& block) {
    Tensor values = fill(spec, block);
    count.read(spec, block);
    return values;
  });
}

std::int64_t trained_context(const ModelToRun& run) {
  const std::int64_t stated = run.config.get_int("max_position_embeddings");
  const auto& rope = run.model.rope;
  if (rope.type != "yarn") return stated;
  return std::max(stated,
                  static_cast<std::int64_t>(static_cast<double>(rope.original_positions) * rope.factor));
}

void note_context(ModelToRun& run, const std::string& command, std::int64_t tokens) {
  const std::int64_t trained = trained_context(run);
  if (tokens <= trained) return;
  run.notes.push_back(
      fmt::format("[{}] max_target_length={}: texts may become longer than the {} tokens of context that the "
                  "model was trained for (max_position_embeddings)",
                  command, run.config.get_int("max_target_length"), trained));
}

ModelToRun model_to_run(const std::string& command, const Processes& processes,
                        std::span<const std::string> settings) {
  Config config = config_to_run(command, processes, settings);
  std::vector<std::string> notes = config.notices();
  if (!config.is_set_by_user("weight_dtype"))
    config.set("weight_dtype", config.get_string("dtype"), command + ": no optimizer needs them in another");
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, processes);
  device_of_run(config, mesh, processes, &notes);
  const bool drafts = config.get_bool("mtp_draft");
  if (drafts && command == "eval")
    fail_usage("[eval] mtp_draft=true: only `generate` and `serve` draft tokens; set mtp_draft=false");
  refuse_routing_key(config, "routing_replay", "`train` and `verify`");
  if (command == "eval") refuse_routing_key(config, "routing_record", "`train`, `generate` and `serve`");
  const ModelConfig whole = model_config(config), model = drafts ? whole : without_predictions(whole);
  if (drafts && model.predictions == 0)
    fail_usage("[{}] mtp_draft=true: the model has no prediction layers (mtp_num_layers=0)", command);
  if (drafts && model.has_delta())  // a token that was guessed wrong cannot be taken back out of one
    fail_usage("[{}] mtp_draft=true: a model with gated delta nets remembers whole texts only", command);
  if (drafts && mesh.axis_size("stage") > 1)
    fail_usage("[{}] mtp_draft=true: drafts over a pipeline are planned, not built yet; set mtp_draft=false",
               command);
  const std::string type = config.get_string("tokenizer_type"), path = config.get_string("tokenizer_path");
  if (type != "byte" && path.empty())
    fail_usage(
        "[{}] tokenizer_path: the model has no tokenizer of its own: give tokenizer_path=FILE or "
        "tokenizer_type=byte",
        command);
  std::vector<ParameterSpec> specs = specs_to_run(config, model, &notes);
  specs = specs_as_stored(config, mesh, model, std::move(specs), &notes);
  ModelToRun run{std::move(config), mesh, model, std::move(specs), make_tokenizer(type, path),
                 std::move(notes),  {}};
  run.fill = initial_weights(run.config, model, run.specs, &run.notes, WeightUse::run);
  if (!run.fill) run.notes.push_back("random weights: load_parameters_path is not set");
  return run;
}

}  // namespace switchyard
