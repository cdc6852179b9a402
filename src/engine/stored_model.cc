#include "engine/stored_model.h"

#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "core/json_file.h"
#include "generate/generation_defaults.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/gguf_weights.h"
#include "models/families/family.h"
#include "models/families/hub_source.h"
#include "models/same_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Keys = std::map<std::string, nlohmann::json>;

void add_tokenizer(Keys& keys, const fs::path& folder) {
  const std::string path = tokenizer_in(folder);
  if (path.empty()) return;
  keys["tokenizer_type"] = tokenizer_type_of(path);
  keys["tokenizer_path"] = path;
}

Keys model_keys_of(const HubSource& source) {
  return config_from_hub(source.config, predictions_in(source.config, [&](const std::string& tensor) {
                           return source.weights->contains(tensor);
                         }));
}

Keys keys_of_hub(const std::string& path) {
  const HubSource source = open_hub_source(path);
  const nlohmann::json& config = source.config;
  Keys keys = model_keys_of(source);
  const char* const name = config.contains("dtype") ? "dtype" : "torch_dtype";
  const bool whole = config.value(name, nlohmann::json("bfloat16")) == "float32";
  keys["dtype"] = whole ? "float32" : "bfloat16";
  add_tokenizer(keys, path);
  return keys;
}

Keys keys_of_gguf(const std::string& path) {
  Keys keys = model_keys_of(open_hub_source(path));
  keys["dtype"] = "bfloat16";
  keys["tokenizer_type"] = "gguf";
  keys["tokenizer_path"] = path;
  return keys;
}

// Returns the folder of the files that came with a checkpoint's weights.
std::string carried_folder(const CheckpointFolder& folder) {
  return folder.path() + "/tokenizer";
}

Keys keys_of_checkpoint(const std::string& path) {
  const CheckpointFolder folder = open_checkpoint(path, nullptr);
  const nlohmann::json& resolved = folder.manifest().config;
  Keys keys = model_keys_of_stored(resolved, folder.path());
  for (const char* key : {"dtype", "max_target_length", "tokenizer_type", "add_bos"}) {
    if (resolved.contains(key)) keys[key] = resolved[key];
  }
  add_tokenizer(keys, carried_folder(folder));
  return keys;
}

}  // namespace

bool is_stored_model(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return GgufFile::is_gguf(path);
  return is_checkpoint_path(path) || fs::exists(path + "/config.json", error);
}

Keys generation_keys_of(const std::string& path) {
  if (is_checkpoint_path(path)) return generation_defaults(carried_folder(open_checkpoint(path, nullptr)));
  std::error_code error;
  if (fs::is_directory(path, error)) return generation_defaults(path);
  const GgufFile file = GgufFile::open(path);
  if (!file.metadata().contains("tokenizer.ggml.tokens")) return {};
  return {{"decode_end_tokens", end_tokens_of(file)}};
}

Keys keys_of_stored_model(const std::string& path) {
  Keys keys = is_checkpoint_path(path) ? keys_of_checkpoint(path)
              : fs::is_directory(path) ? keys_of_hub(path)
                                       : keys_of_gguf(path);
  keys["load_parameters_path"] = path;
  keys.merge(generation_keys_of(path));
  return keys;
}

std::string generation_notice_of(const std::string& path) {
  if (is_checkpoint_path(path))
    return ignored_generation_fields(carried_folder(open_checkpoint(path, nullptr)));
  return fs::is_directory(path) ? ignored_generation_fields(path) : "";
}

}  // namespace switchyard
