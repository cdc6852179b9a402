#include "engine/model_to_run.h"

#include <algorithm>

#include "core/error.h"
#include "engine/command_config.h"
#include "engine/stored_model.h"
#include "routing/routing_keys.h"

namespace switchyard {
namespace {

void refuse_keys(const std::string& command, const Config& config) {
  refuse_routing_key(config, "routing_replay", "`train` and `verify`");
  if (command != "serve" && !named_adapters(config).empty())
    fail_usage("[{}] adapter={}: only `serve` has several adapters; expected one folder", command,
               config.get_string("adapter"));
  if (command != "eval") return;
  refuse_routing_key(config, "routing_record", "`train`, `generate` and `serve`");
  if (config.get_bool("mtp_draft"))
    fail_usage("[eval] mtp_draft=true: only `generate` and `serve` draft tokens; set mtp_draft=false");
  if (const std::int64_t guessed = config.get_int("ngram_draft"); guessed > 0)
    fail_usage("[eval] ngram_draft={}: only `generate` and `serve` draft tokens; set ngram_draft=0", guessed);
}

void check_guesses(const std::string& command, const ModelOnMesh& run) {
  const std::int64_t guessed = run.config.get_int("ngram_draft");
  if (run.config.is_set_by_user("mtp_draft_tokens") && !run.config.get_bool("mtp_draft"))
    fail_usage("[{}] mtp_draft_tokens={}: expected with mtp_draft=true", command,
               run.config.get_int("mtp_draft_tokens"));
  if (guessed == 0) return;
  if (run.config.get_bool("mtp_draft"))
    fail_usage("[{}] ngram_draft={} and mtp_draft=true: expected one of them", command, guessed);
}

void require_drafts(const std::string& command, const ModelOnMesh& run) {
  if (run.model.predictions == 0)
    fail_usage("[{}] mtp_draft=true: the model has no prediction layers (mtp_num_layers=0)", command);
  if (run.mesh.axis_size("stage") > 1)
    fail_usage("[{}] mtp_draft=true: drafts over a pipeline are planned, not built yet; set mtp_draft=false",
               command);
}

}  // namespace

std::int64_t trained_context(const ModelOnMesh& run) {
  const std::int64_t stated = run.config.get_int("max_position_embeddings");
  const auto& rope = run.model.attention().rope;
  if (rope.type != "yarn") return stated;
  return std::max(stated,
                  static_cast<std::int64_t>(static_cast<double>(rope.original_positions) * rope.factor));
}

void note_context(ModelOnMesh& run, const std::string& command, std::int64_t tokens) {
  const std::int64_t trained = trained_context(run);
  if (tokens <= trained) return;
  run.notes.push_back(
      fmt::format("[{}] max_target_length={}: texts may become longer than the {} tokens of context that the "
                  "model was trained for (max_position_embeddings)",
                  command, run.config.get_int("max_target_length"), trained));
}

ModelOnRanks model_to_run(const std::string& command, Processes& processes,
                          std::span<const std::string> settings) {
  Config config = config_to_run_fixed(command, processes.count(), settings);
  refuse_keys(command, config);
  ModelOnMesh model(std::move(config), ModelUse::run);
  if (model.config.get_bool("mtp_draft")) require_drafts(command, model);
  check_guesses(command, model);
  std::unique_ptr<Tokenizer> tokenizer = make_tokenizer_of(model.config);
  if (tokenizer == nullptr)
    fail_usage(
        "[{}] tokenizer_path: the model has no tokenizer of its own: give tokenizer_path=FILE or "
        "tokenizer_type=byte",
        command);
  ModelOnRanks run(std::move(model), &processes);
  run.tokenizer = std::move(tokenizer);
  const std::vector<std::string> notices = run.config.notices();
  run.notes.insert(run.notes.begin(), notices.begin(), notices.end());
  const std::string weights = run.config.get_string("load_parameters_path");
  if (command != "eval" && is_stored_model(weights)) {
    if (std::string notice = generation_notice_of(weights); !notice.empty())
      run.notes.push_back(std::move(notice));
  }
  if (!run.fill) run.notes.push_back("random weights: load_parameters_path is not set");
  return run;
}

}  // namespace switchyard
