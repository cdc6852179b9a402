// Finds the chat template in a model's files.
#include <fmt/format.h>

#include <array>
#include <utility>

#include "chat/chat_template.h"
#include "core/error.h"
#include "core/json_file.h"
#include "gguf/gguf_file.h"
#include "gguf/metadata.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard::chat {
namespace {

namespace fs = std::filesystem;
using Settings = nlohmann::json;

constexpr const char *kTemplateFile = "chat_template.jinja", *kOlderFile = "chat_template.json",
                     *kTokenizerSettings = "tokenizer_config.json", *kTokenMap = "special_tokens_map.json";

bool is_file(const fs::path& path) {
  std::error_code status;
  return fs::is_regular_file(path, status);
}

// Adds the tokens with a part to play. `replace`: also those that are there already.
void add_special_tokens(const Settings& settings, bool replace, Json& tokens) {
  for (const auto& [key, value] : settings.items()) {
    if (!key.ends_with("_token") || (!replace && tokens.contains(key))) continue;
    if (value.is_string()) tokens[key] = value.get<std::string>();
    if (value.is_object() && value.contains("content") && value.at("content").is_string())
      tokens[key] = value.at("content").get<std::string>();
  }
}

Settings settings_in(const fs::path& file) {
  if (!is_file(file)) return Settings::object();
  Settings settings = read_json_file(file.string());
  if (!settings.is_object()) fail_usage("[chat] {}: expected an object", file.string());
  return settings;
}

// chat_template of tokenizer_config.json: a text, or a list of {name, template}.
void read_settings_template(const Settings& value, const std::string& file, TemplateSource& source) {
  if (value.is_string()) {
    source.text = value.get<std::string>();
    source.origin = file;
    return;
  }
  if (!value.is_array()) fail_usage("[chat] {}: chat_template is no text and no list", file);
  for (const Settings& entry : value) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template") ||
        !entry.at("name").is_string() || !entry.at("template").is_string())
      fail_usage("[chat] {}: chat_template has an entry without a name and a template", file);
    const auto text = entry.at("template").get<std::string>();
    if (entry.at("name") == "default") source.text = text;
    if (entry.at("name") == "tool_use") source.tool_text = text;
  }
  if (source.text.empty() && !value.empty() && source.tool_text.empty())
    source.text = value[0].at("template").get<std::string>();
  if (source.text.empty()) source.text = source.tool_text;
  source.origin = file;
}

// The folder with the tokenizer's files: of a checkpoint it is tokenizer/.
fs::path tokenizer_folder(const fs::path& model) {
  for (const fs::path& folder : {model, model / "tokenizer"}) {
    for (const char* name : {kTemplateFile, kTokenizerSettings, kTokenMap, kOlderFile}) {
      if (is_file(folder / name)) return folder;
    }
  }
  return model;
}

TemplateSource source_of_folder(const fs::path& folder, bool given) {
  TemplateSource source;
  const fs::path file = folder / kTokenizerSettings;
  const Settings settings = settings_in(file);
  add_special_tokens(settings, true, source.special_tokens);
  // The map counts more where the settings are of an older kind, as in transformers.
  add_special_tokens(settings_in(folder / kTokenMap), !settings.contains("added_tokens_decoder"),
                     source.special_tokens);
  if (given) return source;
  if (is_file(folder / kTemplateFile)) {
    source.text = read_whole_file((folder / kTemplateFile).string());
    source.origin = (folder / kTemplateFile).string();
  } else if (settings.contains("chat_template") && !settings.at("chat_template").is_null()) {
    read_settings_template(settings.at("chat_template"), file.string(), source);
  } else if (const Settings older = settings_in(folder / kOlderFile); older.contains("chat_template")) {
    read_settings_template(older.at("chat_template"), (folder / kOlderFile).string(), source);
  }
  if (const fs::path tools = folder / kMoreTemplates / "tool_use.jinja"; is_file(tools)) {
    source.tool_text = read_whole_file(tools.string());
    if (source.text.empty()) source.text = source.tool_text, source.origin = tools.string();
  }
  return source;
}

TemplateSource source_of_gguf(const fs::path& path, bool given) {
  const GgufFile file = GgufFile::open(path.string());
  const GgufMetadata metadata(file, "tokenizer");
  TemplateSource source;
  constexpr std::array<std::pair<const char*, const char*>, 7> kRoles{
      {{"ggml.bos_token_id", "bos_token"},
       {"ggml.eos_token_id", "eos_token"},
       {"ggml.unknown_token_id", "unk_token"},
       {"ggml.seperator_token_id", "sep_token"},  // so it is spelt
       {"ggml.padding_token_id", "pad_token"},
       {"ggml.cls_token_id", "cls_token"},
       {"ggml.mask_token_id", "mask_token"}}};
  for (const auto& [key, name] : kRoles) {
    if (!metadata.has(key) || !metadata.has("ggml.tokens")) continue;
    const Settings& tokens = metadata.list("ggml.tokens");
    const auto id = metadata.id(key, tokens.size());
    if (id && tokens[*id].is_string()) source.special_tokens[name] = tokens[*id].get<std::string>();
  }
  if (given) return source;
  if (metadata.has("chat_template")) source.text = metadata.text("chat_template");
  if (metadata.has("chat_template.tool_use")) source.tool_text = metadata.text("chat_template.tool_use");
  if (source.text.empty()) source.text = source.tool_text;
  source.origin = path.string();
  return source;
}

}  // namespace

std::optional<TemplateSource> find_template(const fs::path& model, const fs::path& given) {
  TemplateSource source = model.extension() == ".gguf"
                              ? source_of_gguf(model, !given.empty())
                              : source_of_folder(tokenizer_folder(model), !given.empty());
  if (!given.empty()) {
    if (!is_file(given)) fail_usage("[chat] chat_template_path={}: no such file", given.string());
    source.text = read_whole_file(given.string());
    source.origin = given.string();
  }
  if (source.text.empty()) return {};
  return source;
}

std::optional<TemplateSource> template_of_settings(const Settings& settings, const std::string& origin) {
  TemplateSource source;
  add_special_tokens(settings, true, source.special_tokens);
  if (settings.contains("chat_template") && !settings.at("chat_template").is_null())
    read_settings_template(settings.at("chat_template"), origin, source);
  if (source.text.empty()) return {};
  return source;
}

}  // namespace switchyard::chat
