#include "engine/command_config.h"

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "engine/stored_model.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

using Words = std::span<const std::string>;

Config with_ranks(int processes, Words settings, const std::function<Config(Words)>& make) {
  Config config = make(settings);
  if (processes <= 1 || config.is_set_by_user("ranks")) return config;
  std::vector<std::string> more(settings.begin(), settings.end());
  more.push_back(fmt::format("ranks={}", processes));
  return make(more);
}

Config config_of_folder(int processes, Words settings, const std::map<std::string, nlohmann::json>& keys) {
  return with_ranks(processes, settings.subspan(1),
                    [&](Words s) { return Config::from_map_and_environment(keys, s); });
}

std::string first_of(Words settings) {
  return settings.empty() ? "" : settings[0];
}

bool is_folder(const std::string& path) {
  std::error_code problem;
  return std::filesystem::is_directory(path, problem);
}

// Names the GGUF file of a folder that holds one, as a download makes it; else `otherwise`.
std::string gguf_hint(const std::string& folder, const std::string& otherwise) {
  std::set<std::string> files;
  std::error_code problem;
  for (const auto& item : std::filesystem::directory_iterator(folder, problem)) {
    if (item.path().extension() == ".gguf") files.insert(item.path().string());
  }
  return files.empty() ? otherwise : "it holds a GGUF file, give that: " + *files.begin();
}

}  // namespace

Config config_to_run(const std::string& command, int processes, Words settings) {
  const std::string first = first_of(settings);
  if (is_stored_model(first)) return config_of_folder(processes, settings, keys_of_stored_model(first));
  if (is_folder(first))
    fail_usage(
        "[{}] {}: expected a Hugging Face model, a checkpoint, or the folder of a run that has one ({})",
        command, first, gguf_hint(first, "train with enable_checkpointing=true"));
  Config config = with_ranks(processes, settings, Config::from_args);
  const std::string weights = config.get_string("load_parameters_path");
  if (!is_stored_model(weights)) return config;  // none, or one that opening it refuses
  for (const auto& [key, value] : generation_keys_of(weights)) {
    if (!config.is_set_by_user(key) && !config.is_changed(key)) config.set(key, value, weights);
  }
  return config;
}

Config config_to_run_fixed(const std::string& command, int processes, Words settings) {
  Config config = config_to_run(command, processes, settings);
  if (!config.is_set_by_user("weight_dtype"))
    config.set("weight_dtype", config.get_string("dtype"), command + ": no optimizer needs them in another");
  return config;
}

Config config_to_train(const std::string& command, int processes, Words settings) {
  const std::string first = first_of(settings);
  if (is_hub_source(first)) {
    std::map<std::string, nlohmann::json> keys = keys_of_stored_model(first);
    std::erase_if(keys, [](const auto& key) { return key.first.starts_with("decode_"); });
    return config_of_folder(processes, settings, keys);
  }
  if (is_folder(first))
    fail_usage(
        "[{}] {}: expected CONFIG.yml or a Hugging Face folder (with config.json); {}", command, first,
        gguf_hint(first, "a run starts from a checkpoint's weights with load_parameters_path=" + first));
  return with_ranks(processes, settings, Config::from_args);
}

}  // namespace switchyard
