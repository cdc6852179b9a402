// Reads the folder of a training run: its checkpoints and summary.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard {

struct RunCheckpoint {
  std::string name, path;
  std::int64_t bytes = 0;  // size of all files
  std::string problem;     // why it cannot be read; "" when its marker, manifest and headers are valid
};

struct RunFolder {
  std::string path;
  std::vector<RunCheckpoint> checkpoints;  // oldest first, unfinished ones included
  nlohmann::json summary;                  // summary.json; null without
};

// True when `path` has a summary.json or a folder `checkpoints`.
bool is_run_folder(const std::string& path);
RunFolder open_run_folder(const std::string& path);

std::string run_text(const RunFolder& run);
nlohmann::json run_json(const RunFolder& run);

}  // namespace switchyard
