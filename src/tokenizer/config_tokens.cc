#include "tokenizer/config_tokens.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_set>

#include "core/json_file.h"
#include "tokenizer/piece_model.h"

namespace switchyard {
namespace {

ConfigToken token_of(const JsonReader& entry, bool special) {
  ConfigToken token;
  token.content = entry.text("content");
  token.special = entry.flag("special", special);
  token.normalized = entry.flag("normalized", !token.special);
  token.left_strip = entry.flag("lstrip", false);
  token.right_strip = entry.flag("rstrip", false);
  token.single_word = entry.flag("single_word", false);
  return token;
}

// Reads a text, or an object with a content.
ConfigToken named(const nlohmann::json& value, const JsonReader& settings, const std::string& key) {
  if (value.is_object()) return token_of(JsonReader(value, key), true);
  if (!value.is_string()) settings.fail(in_quotes(key) + " is not a token");
  ConfigToken token;
  token.content = value.get<std::string>();
  return token;
}

std::int32_t id_of_key(const std::string& key, const JsonReader& settings) {
  std::int32_t id = -1;
  const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
  if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id > kMaxTokenId)
    settings.fail(fmt::format("\"added_tokens_decoder\" has {}, which is no id", in_quotes(key)));
  return id;
}

}  // namespace

std::vector<ConfigToken> tokens_of_config(const JsonReader& settings) {
  std::vector<ConfigToken> tokens;
  std::unordered_set<std::string> seen;
  const auto add = [&](ConfigToken token) {
    if (!token.content.empty() && seen.insert(token.content).second) tokens.push_back(std::move(token));
  };
  if (settings.has("added_tokens_decoder")) {
    std::map<std::int32_t, ConfigToken> by_id;
    const JsonReader decoder = settings.object("added_tokens_decoder");
    for (const auto& [key, value] : settings.at("added_tokens_decoder").items()) {
      ConfigToken token = token_of(decoder.object(key.c_str()), false);
      token.id = id_of_key(key, settings);
      by_id[*token.id] = std::move(token);
    }
    for (auto& [id, token] : by_id) add(std::move(token));
  }
  for (const char* key :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (settings.has(key)) add(named(settings.at(key), settings, key));
  }
  // A list, or in newer files also an object of names and tokens.
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    if (!settings.has(key)) continue;
    for (const auto& [name, value] : settings.at(key).items()) add(named(value, settings, key));
  }
  return tokens;
}

std::optional<std::string> named_token(const JsonReader& settings, const char* key) {
  if (!settings.has(key)) return {};
  return settings.at(key).is_object() ? settings.object(key).text("content") : settings.text(key);
}

}  // namespace switchyard
