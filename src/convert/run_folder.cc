#include "convert/run_folder.h"

#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "convert/inspect.h"
#include "convert/table.h"
#include "convert/tensor_source.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::int64_t bytes_below(const fs::path& folder) {
  std::int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_regular_file(ignored)) bytes += static_cast<std::int64_t>(it->file_size(ignored));
  }
  return bytes;
}

std::string problem_of(const std::string& path) {
  try {
    CheckpointFolder::open(path);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

bool is_run_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(fs::path(path) / "checkpoints", error) ||
         fs::exists(fs::path(path) / "summary.json", error);
}

RunFolder open_run_folder(const std::string& path) {
  RunFolder run;
  run.path = path;
  const fs::path checkpoints = fs::path(path) / "checkpoints";
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const std::string name = it->path().filename().string();
    if (!it->is_directory(ignored)) continue;
    const std::string folder = it->path().string();
    run.checkpoints.push_back({name, folder, bytes_below(folder), problem_of(folder)});
  }
  const NaturalOrder less;
  std::sort(run.checkpoints.begin(), run.checkpoints.end(),
            [&](const RunCheckpoint& a, const RunCheckpoint& b) { return less(a.name, b.name); });
  const fs::path summary = fs::path(path) / "summary.json";
  if (fs::exists(summary, error)) run.summary = read_json_file(summary.string());
  return run;
}

std::string run_text(const RunFolder& run) {
  std::string text = fmt::format("{}: run\n", run.path);
  if (run.summary.is_object()) {
    const auto& s = run.summary;
    const nlohmann::json config = s.value("config", nlohmann::json::object());
    text += fmt::format("  model       {} ({})\n", config.value("model_name", "?"),
                        config.value("decoder_block", "?"));
    text += fmt::format("  ranks       {}\n", s.value("ranks", std::int64_t{1}));
  }
  Table table({"checkpoint", ">size", "state"});
  for (const RunCheckpoint& c : run.checkpoints)
    table.add({c.name, byte_text(c.bytes), c.problem.empty() ? "complete" : c.problem});
  return text + (table.empty() ? "  no checkpoints\n" : "\n" + table.text("  "));
}

nlohmann::json run_json(const RunFolder& run) {
  nlohmann::json checkpoints = nlohmann::json::array();
  for (const RunCheckpoint& c : run.checkpoints) {
    checkpoints.push_back(
        {{"name", c.name}, {"bytes", c.bytes}, {"complete", c.problem.empty()}, {"problem", c.problem}});
  }
  return {{"path", run.path}, {"checkpoints", checkpoints}, {"summary", run.summary}};
}

}  // namespace switchyard
