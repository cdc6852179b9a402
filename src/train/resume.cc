#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// What going on exactly depends on, besides the model.
constexpr std::array kStateKeys{"weight_dtype", "opt_type", "mu_dtype", "trainable_parameters_mask"};

// What a position in the data stands for.
constexpr std::array kDataKeys{"dataset_type",
                               "data_path",
                               "data_mixture_weights",
                               "train_data_columns",
                               "tokenizer_type",
                               "tokenizer_path",
                               "add_bos",
                               "add_eos",
                               "max_target_length",
                               "packing",
                               "use_truncation",
                               "max_segments_per_seq",
                               "enable_data_shuffling",
                               "data_shuffle_seed"};

// What says how weights change, besides the schedule's length and the batch.
constexpr std::array kTrainingKeys{"learning_rate",
                                   "lr_schedule_type",
                                   "learning_rate_final_fraction",
                                   "warmup_steps_fraction",
                                   "wsd_decay_steps_fraction",
                                   "wsd_decay_style",
                                   "adam_b1",
                                   "adam_b2",
                                   "adam_eps",
                                   "adam_eps_root",
                                   "adam_weight_decay",
                                   "weight_decay_exclude",
                                   "adamw_mask",
                                   "muon_include_routers",
                                   "muon_beta",
                                   "muon_weight_decay",
                                   "muon_consistent_rms",
                                   "gradient_clipping_threshold",
                                   "skip_step_on_spikes",
                                   "z_loss_multiplier",
                                   "load_balance_loss_weight",
                                   "moe_use_megatron_seq_aux_loss",
                                   "routed_bias_update_rate",
                                   "mtp_loss_scaling_factor",
                                   "indexer_loss_scaling_factor"};

// Calls each(key, value of the checkpoint, value of this run) where they differ.
template <std::size_t N, typename Each>
void for_other_values(const Config& config, const CheckpointFolder& checkpoint,
                      const std::array<const char*, N>& keys, const Each& each) {
  const nlohmann::json own = config.resolved();
  for (const char* key : keys) {
    const auto stored = checkpoint.manifest().config.find(key);
    if (stored == checkpoint.manifest().config.end() || !own.contains(key) || *stored == own[key]) continue;
    each(key, stored->dump(), own[key].dump());
  }
}

template <std::size_t N>
void check_keys(const Config& config, const CheckpointFolder& checkpoint,
                const std::array<const char*, N>& keys, const char* advice) {
  for_other_values(config, checkpoint, keys,
                   [&](const char* key, const std::string& stored, const std::string& own) {
                     fail_usage("[checkpoint] {}: made with {}={}, this run has {}={}; {}", checkpoint.path(),
                                key, stored, key, own, advice);
                   });
}

// Going on with other data is a choice, but not one to make unaware.
void note_other_data(const Config& config, const CheckpointFolder& checkpoint,
                     std::vector<std::string>* notes) {
  for_other_values(config, checkpoint, kDataKeys,
                   [&](const char* key, const std::string& stored, const std::string& own) {
                     notes->push_back(
                         fmt::format("warning: {}: made with {}={}, this run has {}={}; from "
                                     "here on some rows come again, others never",
                                     checkpoint.path(), key, stored, key, own));
                   });
}

// The steps of the schedule of the learning rate, of a resolved config.
std::int64_t schedule_steps(const nlohmann::json& config) {
  const auto stated = config.at("learning_rate_schedule_steps").get<std::int64_t>();
  return stated >= 0 ? stated : config.at("steps").get<std::int64_t>();
}

// The sequences of a step, of a resolved config.
std::int64_t batch_rows(const nlohmann::json& config) {
  return std::llround(config.at("per_device_batch_size").get<double>() * config.at("ranks").get<double>()) *
         config.at("gradient_accumulation_steps").get<std::int64_t>();
}

// A run may go on with another learning rate, and a user should know that it does.
void note_other_training(const Config& config, const CheckpointFolder& checkpoint,
                         std::vector<std::string>* notes) {
  const auto note = [&](const std::string& what, const std::string& before, const std::string& now) {
    notes->push_back(fmt::format("warning: {}: made with {}={}, this run has {}={}, from here on",
                                 checkpoint.path(), what, before, what, now));
  };
  for_other_values(config, checkpoint, kTrainingKeys, note);
  const nlohmann::json &stored = checkpoint.manifest().config, own = config.resolved();
  const auto compare = [&](const char* what, std::int64_t (*value)(const nlohmann::json& config),
                           std::initializer_list<const char*> keys) {
    for (const char* key : keys) {
      if (!stored.contains(key) || !own.contains(key)) return;  // of a converted checkpoint
    }
    if (value(stored) != value(own)) note(what, std::to_string(value(stored)), std::to_string(value(own)));
  };
  compare("steps of the schedule", schedule_steps, {"learning_rate_schedule_steps", "steps"});
  compare("sequences of a step", batch_rows,
          {"per_device_batch_size", "ranks", "gradient_accumulation_steps"});
}

// A converted checkpoint says the same of a model in other keys, or in more.
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
  if (fit == Fit::state) check_keys(config, checkpoint, kStateKeys, advice);
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

ResumePoint find_resume_point(const Config& config, const std::string& checkpoints,
                              const std::vector<StoredTensor>& needed, std::vector<std::string>* notes) {
  ResumePoint point;
  if (config.get_bool("enable_checkpointing")) point.candidates = find_checkpoints(checkpoints);
  point.own = !point.candidates.empty();
  std::vector<std::string> skipped;
  std::optional<CheckpointFolder> newest;
  const std::string from = config.get_string("load_full_state_path");
  if (point.own) {
    newest = open_newest(point.candidates, &skipped);
    while (point.candidates.front().path != newest->path()) point.candidates.erase(point.candidates.begin());
  } else if (!from.empty()) {
    newest = open_checkpoint(from, &skipped);
    point.candidates = {{newest->manifest().step, newest->path()}};
  } else {
    return point;
  }
  for (const std::string& line : skipped) notes->push_back("warning: " + line + "; using the one before");
  check_fits(config, *newest, needed, Fit::state);
  if (point.own) note_other_data(config, *newest, notes);
  note_other_training(config, *newest, notes);
  point.step = newest->manifest().step;
  point.rows = newest->manifest().data.value("rows", std::int64_t{0});
  return point;
}

Manifest restore_newest(Checkpointer& checkpointer, const ResumePoint& point,
                        std::vector<std::string>* skipped) {
  std::string problem;
  for (const FoundCheckpoint& candidate : point.candidates) {
    if (checkpointer.restore(candidate.path, problem))
      return CheckpointFolder::open(candidate.path).manifest();
    skipped->push_back("warning: " + problem + "; using the one before");
  }
  fail_usage("{} (and there is no whole checkpoint before it)", problem);
}

}  // namespace switchyard
