#include "engine/output_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/error.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// Identifies a file whatever its path. Devices and pipes have no identity: they keep nothing.
using FileIdentity = std::pair<dev_t, ino_t>;

std::optional<FileIdentity> identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return FileIdentity{status.st_dev, status.st_ino};
}

// Returns true if `path` is that file, or a folder that has the file at any depth.
bool has_file(const fs::path& path, const FileIdentity& file) {
  if (identity_of(path) == file) return true;
  std::error_code error;
  constexpr auto kOptions = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(path, kOptions, error), end; !error && it != end;
       it.increment(error)) {
    if (identity_of(it->path()) == file) return true;
  }
  return false;
}

// Returns true if a file at `path` would be read as a text of `folder`, where names with a dot are hidden.
bool would_be_text_of(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  const fs::path whole = fs::weakly_canonical(path, error),
                 inside = whole.lexically_relative(fs::canonical(folder, error));
  return !error && !inside.empty() && std::none_of(inside.begin(), inside.end(), [](const fs::path& part) {
    return part.string().starts_with('.');
  });
}

std::vector<std::pair<std::string, std::string>> inputs_of(const Config& config) {
  std::vector<std::pair<std::string, std::string>> inputs;
  for (const char* key : {"tokenizer_path", "load_parameters_path", "load_full_state_path", "routing_replay",
                          "custom_mesh_and_rule", "custom_mesh_and_rule_for_eval"})
    inputs.emplace_back(key, config.get_string(key));
  if (config.get_string("dataset_type") != "synthetic" && !config.is_none("data_path")) {
    for (const std::string& part : split_paths(config.get_string("data_path")))
      inputs.emplace_back("data_path", part);
  }
  std::erase_if(inputs, [](const auto& input) { return input.second.empty(); });
  return inputs;
}

}  // namespace

void require_outputs_apart(const std::string& command, const Config& config,
                           const std::vector<NamedOutput>& outputs) {
  const auto inputs = inputs_of(config);
  const bool reads_texts = config.get_string("dataset_type") == "text";
  std::vector<std::pair<fs::path, std::string>> seen;
  for (const auto& [name, path, is_of_run] : outputs) {
    if (path.empty()) continue;
    const auto identity = identity_of(path);
    for (const auto& [key, input] : inputs) {
      if (identity && has_file(input, *identity))
        fail_usage("[{}] {}={} would be written over, but {}={} is read: name another file", command, name,
                   path, key, input);
      if (reads_texts && !is_of_run && key == "data_path" && would_be_text_of(input, path))
        fail_usage("[{}] {}={} would be one of the texts of {}={}: name a file elsewhere", command, name,
                   path, key, input);
    }
    std::error_code error;
    if (!identity && fs::exists(path, error)) continue;  // a device or a pipe
    const fs::path whole = fs::weakly_canonical(path, error);
    for (const auto& [other, of] : seen) {
      if (other == whole || (identity && identity_of(other) == identity))
        fail_usage("[{}] {}={}: expected another file than {}", command, name, path, of);
    }
    seen.emplace_back(whole, name);
  }
}

}  // namespace switchyard
