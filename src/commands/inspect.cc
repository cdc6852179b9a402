#include "convert/inspect.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "commands/commands.h"
#include "convert/compare.h"
#include "convert/inspect_adapter.h"
#include "convert/prove.h"
#include "convert/run_folder.h"
#include "convert/tensor_source.h"
#include "core/error.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

Report with_version(const Options& options, std::string text, nlohmann::json json, int status = 0) {
  json["version"] = SWITCHYARD_VERSION;
  return reported(options, std::move(text), json, status);
}

// Tells of damage in checkpoints, and returns its lines.
std::vector<std::string> prove_checkpoints(const std::vector<std::string>& paths, std::string& text,
                                           const Tell& tell) {
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    const std::vector<std::string> damage = damage_of(path);
    for (const std::string& line : damage) tell(line);
    append(text, "{}: {}\n", path,
           damage.empty() ? "every byte is as it was written" : fmt::format("{} damaged", damage.size()));
    all.insert(all.end(), damage.begin(), damage.end());
  }
  return all;
}

// The checkpoints that --prove reads: that at `path`, or all of a run.
std::vector<std::string> checkpoints_at(const std::string& path) {
  std::vector<std::string> paths;
  if (std::filesystem::exists(path + "/manifest.json")) return {path};
  if (!is_run_folder(path)) return {};
  for (const RunCheckpoint& c : open_run_folder(path).checkpoints) {
    if (has_marker(c.path)) paths.push_back(c.path);
  }
  return paths;
}

// The adapter's base: that of --base, or the one that the adapter names; "" where that is not here.
std::string base_for(const Options& options, const std::string& path) {
  const auto given = options.values.find("--base");
  if (given == options.values.end()) return base_of_adapter(path);
  if (!is_hub_source(given->second) && !is_checkpoint_path(given->second))
    fail_usage("[inspect] --base {}: expected a Hugging Face folder, a GGUF file or a checkpoint",
               given->second);
  return given->second;
}

Report inspect_peft(const Options& options) {
  const std::string& path = options.settings[0];
  for (const char* flag : {"--prove", "--statistics"}) {
    if (options.flags.contains(flag)) fail_usage("[inspect] {} {}: not of an adapter", flag, path);
  }
  const std::string base = base_for(options, path);
  if (base.empty())
    fail_usage("[inspect] {}: an adapter, whose base is not where it says; expected --base PATH", path);
  const AdapterInspection inspection = inspect_adapter(path, base);
  return with_version(options, adapter_text(inspection, options.flags.contains("--all")),
                      adapter_json(inspection));
}

Report inspect_one(const Options& options, const Tell& tell) {
  std::string text;
  const std::string& path = options.settings[0];
  const bool prove = options.flags.contains("--prove");
  if (!is_checkpoint_path(path) && is_adapter(path)) return inspect_peft(options);
  if (const auto paths = checkpoints_at(path); prove && !paths.empty()) {
    if (const auto damage = prove_checkpoints(paths, text, tell); !damage.empty())
      return with_version(options, std::move(text), {{"damage", damage}}, 1);
    append(text, "\n");
  }
  nlohmann::json json = nlohmann::json::object();
  if (is_run_folder(path)) {
    const RunFolder run = open_run_folder(path);
    append(text, "{}\n", run_text(run));
    json["run"] = run_json(run);
    const bool readable = std::any_of(run.checkpoints.begin(), run.checkpoints.end(),
                                      [](const RunCheckpoint& c) { return c.problem.empty(); });
    if (!readable) return with_version(options, std::move(text), std::move(json));
  }
  const TensorSource source = TensorSource::open(path);
  const bool adapter = source.kind() == SourceKind::checkpoint && is_adapter(path);
  if (!adapter && options.values.contains("--base")) fail_usage("[inspect] --base: {} is no adapter", path);
  const InspectOptions wanted{options.flags.contains("--all"), options.flags.contains("--statistics"), prove};
  const Inspection inspection = inspect(source, wanted);
  append(text, "{}", inspection_text(source, inspection, wanted));
  json.update(inspection_json(source, inspection));
  if (const std::string base = adapter ? base_for(options, path) : ""; !base.empty()) {
    const AdapterInspection changes = inspect_adapter(path, base);
    append(text, "\n{}", adapter_text(changes, wanted.all));
    json["adapter"] = adapter_json(changes);
  }
  return with_version(options, std::move(text), std::move(json));
}

Report inspect_two(const Options& options) {
  for (const char* flag : {"--prove", "--statistics"}) {
    if (options.flags.contains(flag)) fail_usage("[inspect] {} takes one path, got two", flag);
  }
  if (options.values.contains("--base")) fail_usage("[inspect] --base takes one path, got two");
  const TensorSource a = TensorSource::open(options.settings[0]), b = TensorSource::open(options.settings[1]);
  const SourceComparison comparison = compare_sources(a, b);
  nlohmann::json json = comparison_json(comparison);
  json["a"] = a.path();
  json["b"] = b.path();
  return with_version(options,
                      comparison_text(comparison, a.path(), b.path(), options.flags.contains("--all")),
                      std::move(json), comparison.equal() ? 0 : 3);
}

}  // namespace

Options inspect_options(std::span<const std::string> args) {
  return parse_options("inspect", args);
}

Report run_inspect(const Options& options, const Tell& tell) {
  if (options.settings.empty() || options.settings.size() > 2) {
    fail_usage(
        "[inspect] expected one path, or two to compare, got {}; `switchyard inspect --help` says more",
        options.settings.size());
  }
  return options.settings.size() == 1 ? inspect_one(options, tell) : inspect_two(options);
}

}  // namespace switchyard
