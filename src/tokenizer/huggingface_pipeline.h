// The two stages of a tokenizer.json before its model: normalizers change a text, pre-tokenizers cut it into
// pieces.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Reading of JSON whose form nobody guarantees. All throw Error(usage) naming `name` and the key.
class JsonReader {
 public:
  JsonReader(const nlohmann::json& value, std::string name);
  bool has(const char* key) const;  // present and not null
  JsonReader object(const char* key) const;
  std::vector<JsonReader> list(const char* key) const;  // of objects
  std::string text(const char* key) const;
  std::string text(const char* key, const std::string& absent) const;
  bool flag(const char* key, bool absent) const;
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const;
  const nlohmann::json& at(const char* key) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  const nlohmann::json* value_;
  std::string name_;
};

using Normalizer = std::function<std::string(std::string)>;

// Of the "normalizer" entry: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace. Others are Error(usage).
Normalizer make_normalizer(const JsonReader& entry);

struct Piece {
  std::string text;
  bool first;  // begins at the start of the whole text
};

struct PreTokenizer {
  std::function<std::vector<Piece>(std::vector<Piece>)> split;
  bool byte_level = false;  // the model sees bytes in GPT-2's printable alphabet
};

// Of the "pre_tokenizer" entry: Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation. Others are
// Error(usage).
PreTokenizer make_pre_tokenizer(const JsonReader& entry);

}  // namespace switchyard
