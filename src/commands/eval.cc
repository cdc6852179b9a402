#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "commands/commands.h"
#include "config/declaration.h"
#include "convert/inspect.h"
#include "core/error.h"
#include "core/json_file.h"
#include "data/text_source.h"
#include "engine/model_to_run.h"
#include "engine/output_files.h"
#include "engine/session.h"
#include "engine/stored_model.h"
#include "eval/evaluate.h"
#include "plan/memory_limit.h"
#include "tokenizer/unicode.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

constexpr std::int64_t kWindow = 512;         // tokens, where --window is not given
constexpr std::int64_t kTokensAtOnce = 2048;  // about, where per_device_batch_size is not given

std::string key_of(const std::string& setting) {
  return setting.substr(0, setting.find('='));
}

// A command that only evaluates uses the layout for evaluations.
void take_layout_of_eval(std::vector<std::string>& settings) {
  const std::string of_eval = "custom_mesh_and_rule_for_eval", of_run = "custom_mesh_and_rule";
  std::string mesh;
  for (const std::string& setting : settings) {
    if (key_of(setting) == of_eval) mesh = setting.substr(setting.find('=') + 1);
  }
  if (mesh.empty()) return;
  std::erase_if(settings, [&](const std::string& s) { return key_of(s) == of_eval || key_of(s) == of_run; });
  settings.push_back(of_run + "=" + mesh);
}

// The words of --against-key.
std::vector<std::string> against_keys(const Options& options) {
  const auto given = options.lists.find("--against-key");
  return given == options.lists.end() ? std::vector<std::string>() : given->second;
}

bool has_role(const std::string& setting, KeyRole role) {
  const KeyDeclaration* const key = find_key(key_of(setting));
  return key != nullptr && key->role == role;
}

// The ranks of a session share a mesh and a device, whatever models they hold.
bool is_of_mesh(const std::string& setting) {
  return has_role(setting, KeyRole::layout) || key_of(setting) == "device";
}

// Both models take the experts in one way: the same weights give the same bits on both sides.
bool is_of_both_models(const std::string& setting) {
  return is_of_mesh(setting) || has_role(setting, KeyRole::strategy);
}

ModelOnRanks model_of(const std::vector<std::string>& given, Processes& processes) {
  if (given.empty())
    fail_usage("[eval] expected a model, FOLDER or FILE.gguf; `switchyard eval --help` says more");
  if (!is_stored_model(given[0])) {
    fail_usage(
        "[eval] {}: expected a Hugging Face model, a checkpoint, the folder of a run that has one, or a GGUF "
        "file",
        given[0]);
  }
  std::vector<std::string> settings = given;
  const auto names_type = [](const std::string& s) { return key_of(s) == "dataset_type"; };
  if (std::none_of(given.begin() + 1, given.end(), names_type)) settings.push_back("dataset_type=text");
  ModelOnRanks run = model_to_run("eval", processes, settings);
  if (run.config.get_string("dataset_type") != "text")
    fail_usage("[eval] dataset_type={}: expected text", run.config.get_string("dataset_type"));
  run.model = for_evaluation(std::move(run.model));
  return run;
}

// The other weights, on the layout of `run`.
ModelOnRanks other_model(const Options& options, const ModelOnRanks& run, Processes& processes) {
  const std::string& path = options.values.at("--against");
  if (!is_stored_model(path)) {
    fail_usage(
        "[eval] --against {}: expected a Hugging Face model, a checkpoint, the folder of a run that has one, "
        "or a GGUF file",
        path);
  }
  std::vector<std::string> settings{path};
  std::copy_if(options.settings.begin() + 1, options.settings.end(), std::back_inserter(settings),
               is_of_both_models);
  bool has_tokenizer = false;
  for (const std::string& setting : against_keys(options)) {
    if (is_of_mesh(setting)) {
      fail_usage("[eval] --against-key {}: both models run on one mesh; give it without --against-key",
                 setting);
    }
    std::erase_if(settings, [&](const std::string& s) { return key_of(s) == key_of(setting); });
    settings.push_back(setting);
    has_tokenizer = has_tokenizer || key_of(setting).starts_with("tokenizer_");
  }
  const auto keys = keys_of_stored_model(path);
  const auto type = keys.find("tokenizer_type");
  has_tokenizer =
      has_tokenizer || keys.contains("tokenizer_path") || (type != keys.end() && type->second == "byte");
  if (!has_tokenizer) {
    for (const char* key : {"tokenizer_type", "tokenizer_path"})
      settings.push_back(fmt::format("{}={}", key, run.config.get_string(key)));
  }
  ModelOnRanks other = model_to_run("eval", processes, settings);
  other.model = for_evaluation(std::move(other.model));
  return other;
}

// The state that all ranks share.
struct Evaluation {
  ModelOnRanks run;
  std::optional<ModelOnRanks> other = std::nullopt;
  std::vector<std::int32_t> tokens = {};
  std::int64_t bytes = 0;  // of the text that is scored
  std::int64_t window = 0, stride = 0;
  EvalText text = {};  // of `tokens`
};

std::string read_text(const Config& config, std::vector<std::string>& notes) {
  if (config.get_bool("use_dpo"))
    fail_usage("[eval] use_dpo=true: expected texts; pairs are measured by train");
  if (config.get_bool("use_sft"))
    fail_usage(
        "[eval] use_sft=true: expected texts; conversations are measured by train with eval_data_path=FILE");
  const std::string& path = config.get_string("data_path");
  if (path.empty()) fail_usage("[eval] data_path: expected a file of UTF-8 text, got none");
  std::error_code problem;
  if (std::filesystem::is_directory(path, problem))
    fail_usage("[eval] data_path={}: expected a file of UTF-8 text, got a folder", path);
  std::string text = read_whole_file(path);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) fail_usage("[eval] data_path={}: expected UTF-8 text, byte {} is not", path, at);
    at += length;
  }
  if (has_json_name(path))
    notes.push_back(
        fmt::format("[eval] data_path={}: scored as it stands, as one text with all of its JSON", path));
  return text;
}

void make_tokens(Evaluation& eval) {
  const Config& config = eval.run.config;
  const Tokenizer& tokenizer = *eval.run.tokenizer;
  const std::string text = read_text(config, eval.run.notes), path = config.get_string("data_path");
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (eval.other && eval.other->tokenizer->encode(text) != ids) {
    fail_usage("[eval] --against {}: its tokenizer makes other tokens of {} than that of the model",
               eval.other->config.get_string("load_parameters_path"), path);
  }
  const bool begins = config.get_bool("add_bos") && tokenizer.bos().has_value();
  if (begins) eval.tokens.push_back(*tokenizer.bos());
  eval.tokens.insert(eval.tokens.end(), ids.begin(), ids.end());
  if (ids.empty() || eval.tokens.size() < 2)
    fail_usage("[eval] data_path={}: expected a text of two tokens or more, got {}", path, ids.size());
  for (const std::int32_t id : eval.tokens) {
    if (id < 0 || id >= eval.run.model.vocab)
      fail_usage("[eval] tokenizer_path={}: token {} of the text is outside vocab_size={}",
                 config.get_string("tokenizer_path"), id, eval.run.model.vocab);
  }
  eval.bytes = static_cast<std::int64_t>(text.size());
  if (!begins) {
    const std::size_t skipped = tokenizer.decode(std::span(ids).first(1)).size();
    eval.bytes = std::max<std::int64_t>(1, eval.bytes - static_cast<std::int64_t>(skipped));
  }
}

void require_room(const Evaluation& eval, const Config& config) {
  const std::int64_t most = config.get_int("max_target_length");
  if (eval.window > most) {
    fail_usage("[eval] --window {}: expected at most max_target_length={} of {}", eval.window, most,
               config.get_string("load_parameters_path"));
  }
}

void cut_windows(const Options& options, Evaluation& eval) {
  const Config& config = eval.run.config;
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const std::int64_t usual = std::min(kWindow, config.get_int("max_target_length"));
  eval.window = number_option("eval", options, "--window", usual, 1, kMost);
  eval.stride =
      number_option("eval", options, "--stride", std::max<std::int64_t>(1, eval.window / 2), 1, eval.window);
  require_room(eval, config);
  if (eval.other) require_room(eval, eval.other->config);
  eval.text.tokens = eval.tokens;
  eval.text.windows = windows_of(static_cast<std::int64_t>(eval.tokens.size()), eval.window, eval.stride);
  if (config.is_set_by_user("per_device_batch_size")) {
    eval.text.rows = rows_to_generate(config, eval.run.mesh);
    return;
  }
  const std::int64_t wanted = std::min(static_cast<std::int64_t>(eval.text.windows.size()),
                                       std::max<std::int64_t>(1, kTokensAtOnce / eval.window));
  const std::int64_t ranks = eval.run.mesh.size();
  eval.text.rows = (wanted + ranks - 1) / ranks * ranks;  // a mesh may split rows over all of them
}

Evaluation make_evaluation(const Options& options, Processes& processes) {
  Evaluation eval{.run = model_of(options.settings, processes)};
  if (options.values.contains("--against")) {
    eval.other = other_model(options, eval.run, processes);
    if (eval.other->model.vocab != eval.run.model.vocab) {
      fail_usage("[eval] --against {}: expected a vocabulary of {} tokens as the model's, got {}",
                 options.values.at("--against"), eval.run.model.vocab, eval.other->model.vocab);
    }
  } else if (const auto keys = against_keys(options); !keys.empty()) {
    fail_usage("[eval] --against-key {}: expected --against OTHER with it", keys[0]);
  }
  make_tokens(eval);
  cut_windows(options, eval);
  const std::int64_t rows = eval.text.rows;
  for (const ModelOnRanks* model : {&eval.run, eval.other ? &*eval.other : &eval.run})
    check_layout(model->config, model->mesh, model->model,
                 {rows, rows, 1, model->model.moe_execution.token_chunks});
  return eval;
}

TextScores score_text(const Evaluation& eval, Context& context, const CommandProgress& progress) {
  const Parameters parameters = eval.run.load(context, progress.loading);
  std::optional<Parameters> of_other;
  std::vector<ScoredModel> models{{eval.run.model, parameters}};
  if (eval.other) models.push_back({eval.other->model, of_other.emplace(eval.other->load(context))});
  const auto total = static_cast<std::int64_t>(eval.text.windows.size());
  const bool tells = context.comm->rank() == 0 && progress.working;
  return evaluate_text(context, models, eval.text, [&](std::int64_t done, double nats) {
    if (tells) progress.working(done, total, fmt::format("perplexity {:.4f}", std::exp(nats)));
  });
}

std::string summary_text(const Evaluation& eval, const EvalSummary& summary) {
  std::string text;
  append(text, "tokens scored     {} ({} skipped: the first has nothing before it)\n",
         with_commas(summary.tokens), static_cast<std::int64_t>(eval.tokens.size()) - summary.tokens);
  append(text, "windows           {} of {} tokens, stride {}\n",
         with_commas(static_cast<std::int64_t>(eval.text.windows.size())), eval.window, eval.stride);
  append(text, "perplexity        {:.6g} a token ({:.6f} nats)\n", summary.perplexity,
         summary.nats_per_token);
  append(text, "bits a byte       {:.6f} ({} bytes of scored text)\n", summary.bits_per_byte,
         with_commas(eval.bytes));
  if (!summary.against) return text;
  const AgainstSummary& against = *summary.against;
  append(text, "against           {}\n", eval.other->config.get_string("load_parameters_path"));
  append(text, "KL(other||model)  mean {:.6g}, median {:.6g}, 99th percentile {:.6g} nats a token\n",
         against.mean_kl, against.median_kl, against.p99_kl);
  append(text, "same top token    {:.4f} %\n", against.same_top * 100);
  return text;
}

nlohmann::json summary_json(const Evaluation& eval, const EvalSummary& summary, double seconds) {
  nlohmann::json json{{"version", SWITCHYARD_VERSION},
                      {"model", eval.run.config.get_string("load_parameters_path")},
                      {"data_path", eval.run.config.get_string("data_path")},
                      {"tokens", summary.tokens},
                      {"skipped", static_cast<std::int64_t>(eval.tokens.size()) - summary.tokens},
                      {"bytes", eval.bytes},
                      {"window", eval.window},
                      {"stride", eval.stride},
                      {"windows", eval.text.windows.size()},
                      {"nats_per_token", summary.nats_per_token},
                      {"perplexity", summary.perplexity},
                      {"bits_per_byte", summary.bits_per_byte},
                      {"seconds", seconds}};
  if (summary.against) {
    json["against"] = {{"model", eval.other->config.get_string("load_parameters_path")},
                       {"mean_kl", summary.against->mean_kl},
                       {"median_kl", summary.against->median_kl},
                       {"p99_kl", summary.against->p99_kl},
                       {"same_top", summary.against->same_top}};
  }
  return json;
}

}  // namespace

Options eval_options(std::span<const std::string> args) {
  Options options = parse_options("eval", args);
  take_layout_of_eval(options.settings);
  return options;
}

std::optional<Report> run_eval(const Options& options, Processes& processes, const Tell& tell,
                               const CommandProgress& progress) {
  const Evaluation eval = make_evaluation(options, processes);
  const Config& config = eval.run.config;
  require_outputs_apart("eval", config, {{"--json", options.json_file}});
  std::vector<const ModelOnMesh*> models{&eval.run};
  if (eval.other) models.push_back(&*eval.other);
  require_memory_of_weights("eval", models, processes);
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
  const bool first = processes.index() == 0;
  if (first) {
    for (const std::string& note : eval.run.notes) tell(note);
    for (const std::string& note : eval.other ? eval.other->notes : std::vector<std::string>())
      tell("--against: " + note);
  }
  const auto begin = std::chrono::steady_clock::now();
  TextScores scores;
  eval.run.run([&](Context& context) {
    TextScores own = score_text(eval, context, progress);
    if (context.comm->rank() == 0) scores = std::move(own);
  });
  if (!first) return {};
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const EvalSummary summary = summarise(scores, eval.bytes);
  return reported(options, summary_text(eval, summary), summary_json(eval, summary, took.count()));
}

}  // namespace switchyard
