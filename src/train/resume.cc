#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "config/declaration.h"
#include "core/error.h"
#include "data/token_folder.h"
#include "engine/checkpoint_fit.h"

namespace switchyard {
namespace {

bool is_noted(const KeyDeclaration& key, KeyRole role) {
  return key.role == role && key.on_resume == OnResume::noted;
}

// Resuming with other data is allowed, but the user should know.
void note_other_data(const Config& config, const CheckpointFolder& checkpoint,
                     std::vector<std::string>* notes) {
  for_other_values(
      config, checkpoint, [](const KeyDeclaration& key) { return is_noted(key, KeyRole::data); },
      [&](const std::string& key, const std::string& stored, const std::string& own) {
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
  for_other_values(
      config, checkpoint, [](const KeyDeclaration& key) { return is_noted(key, KeyRole::training); }, note);
  // The model was compared before: by another block's name it is the same one.
  for_other_values(
      config, checkpoint, [](const KeyDeclaration& key) { return key.name == "decoder_block"; },
      [&](const std::string& key, const std::string& before, const std::string& now) {
        notes->push_back(
            fmt::format("{}: made with {}={}, this run has {}={}: both describe this model, nothing changes",
                        checkpoint.path(), key, before, key, now));
      });
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

}  // namespace

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
  point.data = newest->manifest().data;
  return point;
}

void note_other_contents(const ResumePoint& point, const Dataset& data, std::vector<std::string>* notes) {
  if (!point.own || !point.data.is_object()) return;
  const auto text = [&](const char* name) {
    const auto found = point.data.find(name);
    return found != point.data.end() && found->is_string() ? found->get<std::string>() : "";
  };
  const std::string before = text("description"), now = data.description();
  const std::string stored = text("contents"), own = hash_text(data.fingerprint());
  if (stored.empty() ? before.empty() || before == now : stored == own) return;
  const std::string how =
      before == now ? fmt::format("documents other than those now under data_path, as many ({})", now)
                    : fmt::format("{}; this run has {}", before, now);
  notes->push_back(
      fmt::format("warning: {}: made with other data: {}; from here on some rows come again, others "
                  "never",
                  point.candidates.front().path, how));
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
