#include "tokenizer/tokenizer.h"

#include <filesystem>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "gguf/gguf_tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

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
  if (fs::is_directory(path, status) && type == "huggingface")
    return existing_file(type, path + "/tokenizer.json");
  if (!fs::is_regular_file(path, status)) {
    fail_usage(
        "[tokenizer] tokenizer_path={}: no such file; names on the Hugging Face hub are not downloaded, give "
        "the path "
        "of a local file",
        path);
  }
  return path;
}

}  // namespace

std::string tokenizer_type_of(const std::string& path) {
  if (path == "byte") return "byte";
  if (path.ends_with(".model")) return "sentencepiece";
  if (path.ends_with(".gguf")) return "gguf";
  return path.ends_with(".tiktoken") ? "tiktoken" : "huggingface";
}

std::vector<std::string> tokenizer_files(const std::string& type, const std::string& path) {
  if (type == "byte") return {};
  if (type != "sentencepiece" && type != "huggingface" && type != "tiktoken" && type != "gguf")
    fail_usage("[tokenizer] tokenizer_type={}: expected byte, sentencepiece, huggingface, tiktoken or gguf",
               type);
  std::vector<std::string> files = {existing_file(type, path)};
  const std::string settings = (fs::path(files[0]).parent_path() / "tokenizer_config.json").string();
  std::error_code status;
  if ((type == "huggingface" || type == "sentencepiece") && fs::exists(settings, status))
    files.push_back(settings);
  return files;
}

std::string tokenizer_path_in(const std::string& type, const std::string& folder) {
  if (type == "byte") return "";
  return folder + (type == "sentencepiece" ? "/tokenizer.model"
                   : type == "tiktoken"    ? "/tokenizer.tiktoken"
                                           : "/tokenizer.json");
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& path) {
  if (type == "byte") return std::make_unique<ByteTokenizer>();
  const std::vector<std::string> files = tokenizer_files(type, path);
  const std::string config = files.size() > 1 ? read_whole_file(files[1]) : "";
  if (type == "sentencepiece") return parse_sentencepiece(read_whole_file(files[0]), config, path);
  if (type == "tiktoken") return parse_tiktoken(read_whole_file(files[0]), path);
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
