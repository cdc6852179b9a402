#include "engine/carried_files.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "generate/generation_defaults.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/metadata.h"
#include "models/families/hub_source.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kModelFile = std::string(kCarriedFolder) + "config.json",
                  kGenerationFile = std::string(kCarriedFolder) + "generation_config.json";

std::vector<ExtraFile> below_folder(std::vector<NamedFile> files) {
  std::vector<ExtraFile> extras;
  for (NamedFile& file : files)
    extras.push_back({std::string(kCarriedFolder) + file.name, std::move(file.content)});
  return extras;
}

bool is_of_hub(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" || is_tokenizer_file(name);
}

bool is_of_tokenizer(const ExtraFile& file) {
  return is_tokenizer_file(file.name.substr(kCarriedFolder.size()));
}

// The metadata as the files of a Hugging Face folder.
std::vector<ExtraFile> files_of_gguf(const std::string& path) {
  const GgufFile file = GgufFile::open(path);
  nlohmann::json config = open_hub_source(path).config;
  const GgufMetadata metadata(file, "tokenizer");
  if (!metadata.has("ggml.tokens")) return {{kModelFile, config.dump(2) + "\n"}};
  const std::size_t tokens = metadata.list("ggml.tokens").size();
  for (const auto& [key, name] : {std::pair{"ggml.bos_token_id", "bos_token_id"},
                                  {"ggml.eos_token_id", "eos_token_id"},
                                  {"ggml.padding_token_id", "pad_token_id"}}) {
    if (const auto id = metadata.id(key, tokens)) config[name] = *id;
  }
  std::vector<ExtraFile> files{{kModelFile, config.dump(2) + "\n"}};
  for (ExtraFile& stored : below_folder(stored_tokenizer("gguf", path))) files.push_back(std::move(stored));
  nlohmann::json generation;
  generation["eos_token_id"] = end_tokens_of(file);
  files.push_back({kGenerationFile, generation.dump(2) + "\n"});
  return files;
}

// True when the tokenizer read from `files` is that of `own`: each of its files is there as it is.
bool has_tokenizer(const std::vector<ExtraFile>& files, const std::vector<ExtraFile>& own) {
  const auto main_of = [](const std::vector<ExtraFile>& all) {
    std::vector<std::string> names;
    for (const ExtraFile& file : all) names.push_back(file.name.substr(kCarriedFolder.size()));
    return main_tokenizer_file(names);
  };
  return main_of(files) == main_of(own) && std::ranges::all_of(own, [&](const ExtraFile& file) {
           return std::ranges::any_of(files, [&](const ExtraFile& other) {
             return other.name == file.name && other.content == file.content;
           });
         });
}

bool has_template(const std::vector<ExtraFile>& files) {
  return std::ranges::any_of(files, [](const ExtraFile& file) {
    return file.name.ends_with(".jinja") || file.name.ends_with("/chat_template.json") ||
           (file.name.ends_with("/tokenizer_config.json") &&
            file.content.find("\"chat_template\"") != std::string::npos);
  });
}

// Adds a token to those that end a text, where the file states any. Returns whether it did.
bool add_end(ExtraFile& file, std::int32_t end) {
  Json config = Json::parse(file.content, nullptr, false);
  if (!config.is_object() || !config.contains("eos_token_id")) return false;
  Json& ends = config["eos_token_id"];
  if (ends.is_null()) ends = Json::array();
  if (!ends.is_array()) ends = Json::array({ends});
  if (std::ranges::find(ends, Json(end)) != ends.end()) return false;
  ends.push_back(end);
  file.content = config.dump(2) + "\n";
  return true;
}

// The text of the token with a part to play ("eos_token") as the folder's settings have it, or "".
std::string token_text(const fs::path& folder, const char* role) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    std::error_code ignored;
    if (!fs::exists(folder / name, ignored)) continue;
    const nlohmann::json settings = read_json_file((folder / name).string());
    const nlohmann::json token =
        settings.is_object() ? settings.value(role, nlohmann::json()) : nlohmann::json();
    if (token.is_string()) return token.get<std::string>();
    if (token.is_object() && token.contains("content") && token["content"].is_string())
      return token["content"];
  }
  return "";
}

// The tokenizer that a checkpoint holds, or the byte tokenizer of a run on text; null without.
std::unique_ptr<Tokenizer> tokenizer_of(const CheckpointFolder& checkpoint, const std::string& path) {
  if (!path.empty()) return make_tokenizer(tokenizer_type_of(path), path);
  const nlohmann::json& config = checkpoint.manifest().config;
  const bool bytes =
      config.value("tokenizer_type", "") == "byte" && config.value("dataset_type", "") == "text";
  return bytes ? make_tokenizer("byte", "") : nullptr;
}

}  // namespace

std::vector<ExtraFile> carried_files(const CheckpointFolder& checkpoint) {
  std::vector<ExtraFile> files;
  for (const ManifestExtra& extra : checkpoint.manifest().extras) {
    if (!extra.name.starts_with(kCarriedFolder)) continue;
    const std::string path = checkpoint.path() + "/" + extra.name;
    std::string content = read_whole_file(path);
    if (XXH3_64bits(content.data(), content.size()) != extra.xxh3)
      fail_usage("[checkpoint] {}: its hash is not the manifest's: damaged", path);
    files.push_back({extra.name, std::move(content)});
  }
  return files;
}

std::vector<ExtraFile> carried_files(const std::string& source) {
  if (is_checkpoint_path(source)) return carried_files(open_checkpoint(source, nullptr));
  return fs::is_directory(source) ? below_folder(files_in(source, is_of_hub)) : files_of_gguf(source);
}

std::vector<ExtraFile> carried_by_run(std::vector<ExtraFile> weights, const std::string& source,
                                      const RunTokenizer& tokenizer, std::vector<std::string>* notes) {
  if (tokenizer.type.empty()) return weights;
  std::vector<ExtraFile> own = below_folder(stored_tokenizer(tokenizer.type, tokenizer.path));
  if (has_tokenizer(weights, own)) return weights;
  const bool had = std::ranges::any_of(weights, is_of_tokenizer), chatted = has_template(weights);
  std::erase_if(weights, is_of_tokenizer);
  const std::string name =
      tokenizer.type == "byte" ? "tokenizer_type=byte" : "tokenizer_path=" + tokenizer.path;
  if (had && chatted && !has_template(own))
    notes->push_back(
        fmt::format("[train] {}: it has no chat template, and checkpoints leave out that of {}, "
                    "which goes with another tokenizer",
                    name, source));
  bool added = false;
  for (ExtraFile& file : weights) {
    if (tokenizer.eos && (file.name == kModelFile || file.name == kGenerationFile))
      added = add_end(file, *tokenizer.eos) || added;
  }
  if (added)
    notes->push_back(
        fmt::format("[train] {}: another tokenizer than that of {}: its last token, {}, is added to "
                    "the tokens that end a text (eos_token_id)",
                    name, source, *tokenizer.eos));
  std::ranges::move(own, std::back_inserter(weights));
  return weights;
}

nlohmann::ordered_json special_ids(const CheckpointFolder& checkpoint) {
  constexpr std::pair<const char*, const char*> kRoles[] = {
      {"bos_token_id", "bos_token"}, {"eos_token_id", "eos_token"}, {"pad_token_id", "pad_token"}};
  Json ids = Json::object();
  const fs::path folder = fs::path(checkpoint.path()) / kCarriedFolder;
  for (const ExtraFile& file : carried_files(checkpoint)) {
    if (file.name != kModelFile) continue;
    const nlohmann::json config = parse_json(file.content, (folder / "config.json").string());
    for (const auto& [key, role] : kRoles) {
      if (const nlohmann::json* const stated = stated_of_text(config, key)) ids[key] = *stated;
    }
    return ids;
  }
  const auto tokenizer = tokenizer_of(checkpoint, tokenizer_in(folder));
  if (tokenizer == nullptr) return ids;
  for (const auto& [key, role] : kRoles) {
    const std::string text = token_text(folder, role);
    const std::vector<std::int32_t> found =
        text.empty() ? std::vector<std::int32_t>() : tokenizer->encode_with_special(text);
    ids[key] = nullptr;
    if (found.size() == 1) ids[key] = found[0];
  }
  if (const auto bos = tokenizer->bos(); bos && ids["bos_token_id"].is_null()) ids["bos_token_id"] = *bos;
  if (const auto eos = tokenizer->eos()) ids["eos_token_id"] = *eos;  // what documents ended with
  return ids;
}

}  // namespace switchyard
