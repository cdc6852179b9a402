#include "models/families/hub_source.h"

#include <filesystem>

#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "gguf/gguf_weights.h"
#include "models/families/family.h"

namespace switchyard {

bool is_hub_source(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(path) / "config.json", error) ||
         GgufFile::is_gguf(path);
}

HubSource open_hub_source(const std::string& path) {
  HubSource source;
  if (GgufFile::is_gguf(path)) {
    GgufFile file = GgufFile::open(path);
    source.config = hub_config_of(file);
    source.files = file.paths();
    source.weights = std::make_shared<GgufWeights>(std::move(file), source.config);
    return source;
  }
  auto folder = std::make_shared<WeightFolder>(WeightFolder::open(path));
  source.config = decoder_part(read_json_file(path + "/config.json"));
  source.files = {path + "/config.json"};
  for (const SafetensorsFile& file : folder->files()) source.files.push_back(file.path());
  source.weights = std::move(folder);
  if (const ModelFamily* family = find_family(source.config))
    source.weights = unfused(*family, source.config, std::move(source.weights));
  return source;
}

}  // namespace switchyard
