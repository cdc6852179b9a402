#include "convert/carried_files.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// True for a file of a Hugging Face folder that goes with the weights.
bool is_carried(const std::string& name) {
  static const std::vector<std::string> names{"config.json",        "generation_config.json",
                                              "tokenizer.json",     "tokenizer_config.json",
                                              "tokenizer.model",    "special_tokens_map.json",
                                              "added_tokens.json",  "vocab.json",
                                              "merges.txt",         "vocab.txt",
                                              "chat_template.json", "chat_template.jinja"};
  return std::find(names.begin(), names.end(), name) != names.end() || name.ends_with(".tiktoken") ||
         name == "tiktoken.model";
}

std::vector<fs::path> sorted_files(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<ExtraFile> files_of_hub(const std::string& folder) {
  std::vector<ExtraFile> files;
  for (const fs::path& path : sorted_files(folder)) {
    const std::string name = path.filename().string();
    if (is_carried(name)) files.push_back({"tokenizer/" + name, read_whole_file(path.string())});
  }
  return files;
}

std::vector<ExtraFile> files_of_checkpoint(const CheckpointFolder& checkpoint) {
  constexpr std::string_view kFolder = "tokenizer/";
  std::vector<ExtraFile> files;
  for (const ManifestExtra& extra : checkpoint.manifest().extras) {
    if (!extra.name.starts_with(kFolder)) continue;
    const std::string path = checkpoint.path() + "/" + extra.name;
    std::string content = read_whole_file(path);
    if (XXH3_64bits(content.data(), content.size()) != extra.xxh3)
      fail_usage("[checkpoint] {}: its hash is not the manifest's: damaged", path);
    files.push_back({extra.name.substr(kFolder.size()), std::move(content)});
  }
  return files;
}

}  // namespace switchyard
