#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/gguf_tokenizer.h"
#include "tokenizer/base64.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    ids.reserve(text.size());
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) {
      if (id >= 0 && id < kSeparator)
        text += static_cast<char>(id);
      else if (id != kSeparator)
        text += "\xef\xbf\xbd";
    }
    return text;
  }
  std::vector<std::int32_t> encode_with_special(std::string_view text,
                                                std::span<const TextRange> /*plain*/) const override {
    return encode(text);
  }
  std::string decode_all(std::span<const std::int32_t> ids) const override { return decode(ids); }
  std::optional<std::string> token_bytes(std::int32_t id) const override {
    if (id < 0 || id >= kSeparator) return {};
    return std::string(1, static_cast<char>(id));
  }
  std::int32_t vocab_size() const override { return kSeparator + 1; }
  std::optional<std::int32_t> bos() const override { return {}; }
  std::optional<std::int32_t> eos() const override { return kSeparator; }

 private:
  static constexpr std::int32_t kSeparator = 256;
};

std::string existing_file(const std::string& type, const std::string& path) {
  std::error_code status;
  if (path.empty())
    fail_usage("[tokenizer] tokenizer_type={}: tokenizer_path is empty, expected a local file", type);
  if (fs::is_directory(path, status)) {
    const std::string found = tokenizer_in(path);
    const bool fits = !found.empty() && tokenizer_type_of(found) == type;
    if (type == "huggingface" || fits) return existing_file(type, fits ? found : path + "/tokenizer.json");
    fail_usage("[tokenizer] tokenizer_path={}: the folder has no file for tokenizer_type={}", path, type);
  }
  if (!fs::is_regular_file(path, status)) {
    fail_usage(
        "[tokenizer] tokenizer_path={}: no such file; names on the Hugging Face hub are not downloaded, give "
        "the path "
        "of a local file",
        path);
  }
  return path;
}

// Returns whether a file's first line is base64, a space and a number, as in vocabularies of tiktoken.
bool begins_with_rank(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line(4096, '\0');
  file.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(file.gcount()));
  line.resize(std::min(line.find_first_of("\r\n"), line.size()));
  const std::size_t gap = line.find(' ');
  if (gap == std::string::npos || gap + 1 == line.size()) return false;
  return from_base64(line.substr(0, gap)) && line.find_first_not_of("0123456789", gap + 1) == std::string::npos;
}

constexpr const char *kSettings = "tokenizer_config.json", *kNamedTokens = "special_tokens_map.json",
                     *kAddedTokens = "added_tokens.json", *kById = "added_tokens_decoder";

json object_in(const std::string& path) {
  json object = parse_json(read_whole_file(path), path);
  if (!object.is_object()) fail_usage("[tokenizer] {}: expected an object", path);
  return object;
}

std::string content_of(const json& token) {
  return token.is_object() ? token.value("content", "") : token.is_string() ? token.get<std::string>() : "";
}

// added_tokens.json maps contents to ids. A token with a role is special.
void add_tokens_by_content(const json& ids, json& settings) {
  std::set<std::string> special;
  for (const auto& [key, value] : settings.items()) {
    if (key.ends_with("_token")) special.insert(content_of(value));
    if (key != "additional_special_tokens" && key != "extra_special_tokens") continue;
    for (const auto& [name, token] : value.items()) special.insert(content_of(token));
  }
  for (const auto& [content, id] : ids.items())
    settings[kById][id.dump()] = {{"content", content}, {"special", special.contains(content)}};
}

// The text of one tokenizer_config.json for the files beside the main one. As in transformers, older folders,
// whose tokenizer_config.json has no added_tokens_decoder, have the tokens with a part to play and the added
// ones in files of their own.
std::string settings_of(const std::vector<std::string>& files) {
  if (files.size() == 1) return "";
  json settings = json::object();
  for (const std::string& file : std::span(files).subspan(1)) {
    const json more = object_in(file);
    if (file.ends_with(kAddedTokens))
      add_tokens_by_content(more, settings);
    else
      settings.update(more);
  }
  return settings.dump();
}

}  // namespace

std::string tokenizer_type_of(const std::string& path) {
  if (path == "byte") return "byte";
  std::error_code status;
  if (fs::is_directory(path, status)) {
    const std::string found = tokenizer_in(path);
    return found.empty() ? "huggingface" : tokenizer_type_of(found);
  }
  if (path.ends_with(".model")) return begins_with_rank(path) ? "tiktoken" : "sentencepiece";
  if (path.ends_with(".gguf")) return "gguf";
  return path.ends_with(".tiktoken") ? "tiktoken" : "huggingface";
}

std::vector<std::string> tokenizer_files(const std::string& type, const std::string& path) {
  if (type == "byte") return {};
  if (type != "sentencepiece" && type != "huggingface" && type != "tiktoken" && type != "gguf")
    fail_usage("[tokenizer] tokenizer_type={}: expected byte, sentencepiece, huggingface, tiktoken or gguf",
               type);
  std::vector<std::string> files = {existing_file(type, path)};
  if (type == "gguf") return files;
  const auto add = [&, folder = fs::path(files[0]).parent_path()](const char* name) {
    std::error_code status;
    if (fs::exists(folder / name, status)) files.push_back((folder / name).string());
  };
  add(kSettings);
  if (files.size() > 1 && object_in(files[1]).contains(kById)) return files;
  add(kNamedTokens);
  add(kAddedTokens);
  return files;
}

std::string tokenizer_path_in(const std::string& type, const std::string& folder, const std::string& from) {
  if (type == "byte") return "";
  const std::string kimi = folder + "/" + kKimiModel;
  std::error_code status;
  if (type == "tiktoken" && (from.empty() ? fs::exists(kimi, status) : fs::path(from).filename() == kKimiModel))
    return kimi;
  return folder + (type == "sentencepiece" ? "/tokenizer.model"
                   : type == "tiktoken"    ? "/tokenizer.tiktoken"
                                           : "/tokenizer.json");
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& path) {
  if (type == "byte") return std::make_unique<ByteTokenizer>();
  const std::vector<std::string> files = tokenizer_files(type, path);
  const std::string config = settings_of(files);
  if (type == "sentencepiece") {
    if (begins_with_rank(files[0]))
      fail_usage("[tokenizer] {}: lines of base64 and rank, no SentencePiece model: expected tokenizer_type=tiktoken",
                 files[0]);
    return parse_sentencepiece(read_whole_file(files[0]), config, files[0]);
  }
  if (type == "tiktoken") return parse_tiktoken(read_whole_file(files[0]), config, files[0]);
  if (type == "gguf") {
    const TokenizerFiles stored = tokenizer_files_of(GgufFile::open(path));
    return stored.json.empty() ? parse_sentencepiece(stored.model, stored.config, path)
                               : parse_huggingface(stored.json, stored.config, path);
  }
  return parse_huggingface(read_whole_file(files[0]), config, files[0]);
}

std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool add_bos,
                                        bool add_eos) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (add_bos && tokenizer.bos()) ids.insert(ids.begin(), *tokenizer.bos());
  if (add_eos && tokenizer.ends_prompts() && tokenizer.eos()) ids.push_back(*tokenizer.eos());
  return ids;
}

}  // namespace switchyard
