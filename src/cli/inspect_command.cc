#include "cli/inspect_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "cli/help_page.h"
#include "cli/options.h"
#include "convert/compare.h"
#include "convert/inspect.h"
#include "convert/inspect_adapter.h"
#include "convert/prove.h"
#include "convert/run_folder.h"
#include "convert/tensor_source.h"
#include "core/error.h"
#include "metrics/atomic_file.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

constexpr const char* kInspectHelp = R"(switchyard inspect [options] PATH [PATH]

One PATH: what is in it. Two: how they differ, tensor by tensor. A path is a safetensors file, a Hugging Face folder
(config.json beside model.safetensors or its shards), a checkpoint, the folder of a run (its newest checkpoint), or, for
one PATH, a GGUF file (statistics are those of the values that its blocks stand for) or an adapter (a folder of PEFT). A Hugging Face folder and a checkpoint are compared parameter by parameter, whatever each calls them.

  --all         a line for each tensor, otherwise tensors whose names differ in numbers only share one; and a line for
                each field of what the model computes
  --statistics  smallest and largest value, mean, standard deviation, and how many are not finite
  --prove       read every byte: prints the XXH3-64 of each tensor; of a checkpoint, compares all with its manifest
  --base PATH   of an adapter: the model that it belongs to, unless the adapter names it and it is there. Prints each
                weight that the adapter changes, with rank, scale, and the norm of the change over the weight's norm
  --json FILE   also write everything to FILE, tensor by tensor

Of a comparison: max abs is the largest difference, max rel that over the largest magnitude of the tensor on either side. NaN
equals NaN.

Exit status: 0 done, and no difference; 1 --prove found something corrupt; 2 wrong command line or broken file; 3 a
difference was found.

Examples:
  switchyard inspect tests/golden/hf/deepseek3-tiny --statistics
  switchyard inspect switchyard_output/run/checkpoints/100 switchyard_output/run/checkpoints/200
)";

void write_json(const Options& options, nlohmann::json json) {
  if (options.json_file.empty()) return;
  json["version"] = SWITCHYARD_VERSION;
  write_file_atomic(options.json_file,
                    json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

// Prints damage in checkpoints. Returns 0, or 1 when there is some.
int prove_checkpoints(const std::vector<std::string>& paths) {
  bool damaged = false;
  for (const std::string& path : paths) {
    const std::vector<std::string> damage = damage_of(path);
    for (const std::string& line : damage) fmt::print(stderr, "{}\n", line);
    fmt::print("{}: {}\n", path,
               damage.empty() ? "every byte is as it was written" : fmt::format("{} damaged", damage.size()));
    damaged = damaged || !damage.empty();
  }
  return damaged ? 1 : 0;
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

int inspect_peft(const Options& options) {
  const std::string& path = options.settings[0];
  for (const char* flag : {"--prove", "--statistics"}) {
    if (options.flags.contains(flag)) fail_usage("[inspect] {} {}: not of an adapter", flag, path);
  }
  const std::string base = base_for(options, path);
  if (base.empty())
    fail_usage("[inspect] {}: an adapter, whose base is not where it says; expected --base PATH", path);
  const AdapterInspection inspection = inspect_adapter(path, base);
  fmt::print("{}", adapter_text(inspection, options.flags.contains("--all")));
  write_json(options, adapter_json(inspection));
  return 0;
}

int inspect_one(const Options& options) {
  const std::string& path = options.settings[0];
  const bool prove = options.flags.contains("--prove");
  if (!is_checkpoint_path(path) && is_adapter(path)) return inspect_peft(options);
  if (const auto paths = checkpoints_at(path); prove && !paths.empty()) {
    if (const int status = prove_checkpoints(paths); status != 0) return status;
    fmt::print("\n");
  }
  nlohmann::json json = nlohmann::json::object();
  if (is_run_folder(path)) {
    const RunFolder run = open_run_folder(path);
    fmt::print("{}\n", run_text(run));
    json["run"] = run_json(run);
    const bool readable = std::any_of(run.checkpoints.begin(), run.checkpoints.end(),
                                      [](const RunCheckpoint& c) { return c.problem.empty(); });
    if (!readable) {
      write_json(options, std::move(json));
      return 0;
    }
  }
  const TensorSource source = TensorSource::open(path);
  const bool adapter = source.kind() == SourceKind::checkpoint && is_adapter(path);
  if (!adapter && options.values.contains("--base")) fail_usage("[inspect] --base: {} is no adapter", path);
  const InspectOptions wanted{options.flags.contains("--all"), options.flags.contains("--statistics"), prove};
  const Inspection inspection = inspect(source, wanted);
  fmt::print("{}", inspection_text(source, inspection, wanted));
  json.update(inspection_json(source, inspection));
  if (const std::string base = adapter ? base_for(options, path) : ""; !base.empty()) {
    const AdapterInspection changes = inspect_adapter(path, base);
    fmt::print("\n{}", adapter_text(changes, wanted.all));
    json["adapter"] = adapter_json(changes);
  }
  write_json(options, std::move(json));
  return 0;
}

int inspect_two(const Options& options) {
  for (const char* flag : {"--prove", "--statistics"}) {
    if (options.flags.contains(flag)) fail_usage("[inspect] {} takes one path, got two", flag);
  }
  if (options.values.contains("--base")) fail_usage("[inspect] --base takes one path, got two");
  const TensorSource a = TensorSource::open(options.settings[0]), b = TensorSource::open(options.settings[1]);
  const SourceComparison comparison = compare_sources(a, b);
  fmt::print("{}", comparison_text(comparison, a.path(), b.path(), options.flags.contains("--all")));
  nlohmann::json json = comparison_json(comparison);
  json["a"] = a.path();
  json["b"] = b.path();
  write_json(options, std::move(json));
  return comparison.equal() ? 0 : 3;
}

}  // namespace

int inspect_command(std::span<const std::string> args) {
  const Options options = parse_options("inspect", args);
  if (options.help) {
    print_help_page(kInspectHelp);
    return 0;
  }
  if (options.settings.empty() || options.settings.size() > 2) {
    fail_usage(
        "[inspect] expected one path, or two to compare, got {}; `switchyard inspect --help` says more",
        options.settings.size());
  }
  return options.settings.size() == 1 ? inspect_one(options) : inspect_two(options);
}

}  // namespace switchyard
