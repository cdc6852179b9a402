#include "tokenizer/tokenizer.h"

#include <sentencepiece_processor.h>

#include <filesystem>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"

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

class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(const std::string& path) {
    const auto status = model_.Load(path);
    if (!status.ok()) fail_usage("[tokenizer] {}: not a SentencePiece model: {}", path, status.ToString());
  }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<int> ids;
    const auto status = model_.Encode(std::string(text), &ids);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    return {ids.begin(), ids.end()};
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::vector<int> known;
    for (std::int32_t id : ids) known.push_back(id >= 0 && id < vocab_size() ? id : model_.unk_id());
    std::string text;
    const auto status = model_.Decode(known, &text);
    if (!status.ok()) fail_runtime("[tokenizer] SentencePiece: {}", status.ToString());
    return text;
  }
  std::int32_t vocab_size() const override { return model_.GetPieceSize(); }
  std::optional<std::int32_t> bos() const override { return existing(model_.bos_id()); }
  std::optional<std::int32_t> eos() const override { return existing(model_.eos_id()); }

 private:
  static std::optional<std::int32_t> existing(int id) { return id < 0 ? std::nullopt : std::optional(id); }
  sentencepiece::SentencePieceProcessor model_;
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
  return path.ends_with(".tiktoken") ? "tiktoken" : "huggingface";
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& path) {
  if (type == "byte") return std::make_unique<ByteTokenizer>();
  if (type == "sentencepiece") return std::make_unique<SentencePieceTokenizer>(existing_file(type, path));
  if (type == "tiktoken") return parse_tiktoken(read_whole_file(existing_file(type, path)), path);
  if (type == "huggingface") {
    const std::string file = existing_file(type, path);
    const auto beside = fs::path(file).parent_path() / "tokenizer_config.json";
    std::error_code status;
    return parse_huggingface(read_whole_file(file),
                             fs::exists(beside, status) ? read_whole_file(beside.string()) : "", file);
  }
  fail_usage("[tokenizer] tokenizer_type={}: expected byte, sentencepiece, huggingface or tiktoken", type);
}

}  // namespace switchyard
