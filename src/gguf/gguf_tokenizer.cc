#include "gguf/gguf_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "gguf/metadata.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Kinds of tokens, numbered as SentencePiece numbers its pieces.
enum class TokenType : std::int64_t { normal = 1, unknown, control, user_defined, unused, byte };

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<TokenType> types;  // one a token
};

Vocabulary vocabulary_of(const GgufMetadata& metadata) {
  Vocabulary vocabulary;
  for (const json& token : metadata.list("ggml.tokens")) {
    if (!token.is_string()) metadata.wrong("ggml.tokens", "strings");
    vocabulary.tokens.push_back(token.get<std::string>());
  }
  vocabulary.types.assign(vocabulary.tokens.size(), TokenType::normal);
  if (!metadata.has("ggml.token_type")) return vocabulary;
  const json& types = metadata.list("ggml.token_type");
  if (types.size() != vocabulary.tokens.size())
    metadata.wrong("ggml.token_type", fmt::format("{} numbers, one a token", vocabulary.tokens.size()));
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::int64_t type = types[i].is_number_integer() ? types[i].get<std::int64_t>() : 0;
    if (type < 1 || type > 6) metadata.wrong("ggml.token_type", "numbers from 1 to 6");
    vocabulary.types[i] = static_cast<TokenType>(type);
  }
  return vocabulary;
}

// How texts are split before merges, by the names that llama.cpp gives the rules. The expressions are those
// of the models' published tokenizer.json.
struct Splits {
  std::string_view name;
  std::vector<std::string_view> expressions;  // each isolates its matches in what those before left
};

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<Splits>& known_splits() {
  static const std::vector<Splits> splits{
      {"gpt-2", {kGpt2}},
      {"llama-bpe", {kLlama3}},
      {"qwen2", {kQwen2}},
      {"qwen35", {kQwen35}},
      {"gpt-4o", {kGpt4o}},
      {"deepseek-v3", {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", kDeepseekWords}},
  };
  return splits;
}

json pre_tokenizer_of(const GgufMetadata& metadata) {
  const std::string name = metadata.text("ggml.pre");
  std::string names;
  for (const Splits& splits : known_splits()) {
    names += (names.empty() ? "" : ", ") + std::string(splits.name);
    if (splits.name != name) continue;
    json steps = json::array();
    for (const std::string_view expression : splits.expressions)
      steps.push_back({{"type", "Split"},
                       {"pattern", {{"Regex", std::string(expression)}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
    steps.push_back(
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
    return {{"type", "Sequence"}, {"pretokenizers", steps}};
  }
  metadata.wrong("ggml.pre", "one of " + names);
}

std::string byte_level_bpe(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  json added = json::array(), ids = json::object();
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (!ids.emplace(vocabulary.tokens[i], i).second)
      metadata.wrong("ggml.tokens", fmt::format("each once, got {} twice", in_quotes(vocabulary.tokens[i])));
    const bool special = vocabulary.types[i] == TokenType::control;
    if (!special && vocabulary.types[i] != TokenType::user_defined) continue;
    added.push_back({{"id", i},
                     {"content", vocabulary.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return json{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer_of(metadata)},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", ids},
        {"merges", metadata.list("ggml.merges")},
        {"ignore_merges", metadata.text("ggml.pre") == "llama-bpe"}}}}
      .dump();
}

// Protocol buffers, of which a SentencePiece model is one: ModelProto of sentencepiece_model.proto.
class Message {
 public:
  Message& text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& number(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  Message& real(int field, float value) {
    key(field, 5);
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 255);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(int field, int wire) {
    varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
  }
  void varint(std::uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += static_cast<char>((value & 127) | 128);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

std::string sentencepiece(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  const std::size_t size = vocabulary.tokens.size();
  const json& scores = metadata.list("ggml.scores");
  if (scores.size() != size) metadata.wrong("ggml.scores", fmt::format("{} numbers, one a token", size));
  Message model;
  std::optional<std::size_t> unknown;
  bool bytes = false;
  for (std::size_t i = 0; i < size; ++i) {
    if (!scores[i].is_number()) metadata.wrong("ggml.scores", "numbers");
    if (vocabulary.types[i] == TokenType::unknown) unknown = i;
    bytes = bytes || vocabulary.types[i] == TokenType::byte;
    model.text(1, Message()
                      .text(1, vocabulary.tokens[i])
                      .real(2, scores[i].get<float>())
                      .number(3, static_cast<std::uint64_t>(vocabulary.types[i]))
                      .bytes());
  }
  if (!unknown) metadata.wrong("ggml.token_type", "a token of type 2, for what is unknown");
  const auto id = [&](const char* key) {  // -1: none
    return static_cast<std::uint64_t>(
        static_cast<std::int64_t>(metadata.id(key, size).value_or(~std::size_t{0})));
  };
  constexpr std::uint64_t kBpe = 2;
  model.text(2, Message()
                    .number(3, kBpe)
                    .number(4, size)
                    .number(35, bytes)
                    .number(40, *unknown)
                    .number(41, id("ggml.bos_token_id"))
                    .number(42, id("ggml.eos_token_id"))
                    .number(43, ~std::uint64_t{0})
                    .bytes());
  model.text(3, Message()
                    .text(1, "identity")
                    .number(3, metadata.flag("ggml.add_space_prefix", true))
                    .number(4, metadata.flag("ggml.remove_extra_whitespaces", false))
                    .number(5, 1)
                    .bytes());
  return model.bytes();
}

// Tokens that end a text under whatever key the file has them, as llama.cpp knows them by name.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>",    "<|end|>", "<|return|>",        "<|call|>",
    "<|calls|>",  "<|flush|>",  "<|endoftext|>", "</s>",    "<|end_of_text|>",   "<end_of_turn>",
    "<EOT>",      "_<EOT>",     "[EOT]",         "[EOS]",   "<end_of_utterance>"};

}  // namespace

std::vector<std::int64_t> end_tokens_of(const GgufFile& file) {
  const GgufMetadata metadata(file, "tokenizer");
  const std::vector<std::string> tokens = vocabulary_of(metadata).tokens;
  std::set<std::int64_t> ends;
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::ranges::find(kEndNames, tokens[i]) == std::end(kEndNames)) continue;
    ends.insert(static_cast<std::int64_t>(i));
    names.insert(tokens[i]);
  }
  // Where messages have ends of their own, <|end|> is between two parts of one text.
  if ((names.contains("<|return|>") && names.contains("<|call|>")) ||
      (names.contains("<|calls|>") && names.contains("<|flush|>"))) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == "<|end|>") ends.erase(static_cast<std::int64_t>(i));
    }
  }
  for (const char* key : {"ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"}) {
    if (const auto id = metadata.id(key, tokens.size())) ends.insert(static_cast<std::int64_t>(*id));
  }
  for (const char* key : {"ggml.eos_token_ids", "ggml.eog_token_ids"}) {
    if (!metadata.has(key)) continue;
    for (const json& id : metadata.list(key)) {
      if (!id.is_number_integer() || id < 0 || id >= tokens.size())
        metadata.wrong(key, fmt::format("some of {} ids", tokens.size()));
      ends.insert(id.get<std::int64_t>());
    }
  }
  return {ends.begin(), ends.end()};
}

TokenizerFiles tokenizer_files_of(const GgufFile& file) {
  const GgufMetadata metadata(file, "tokenizer");
  const Vocabulary vocabulary = vocabulary_of(metadata);
  const std::string kind = metadata.text("ggml.model");
  TokenizerFiles files;
  if (kind == "gpt2")
    files.json = byte_level_bpe(metadata, vocabulary);
  else if (kind == "llama")
    files.model = sentencepiece(metadata, vocabulary);
  else
    metadata.wrong("ggml.model", "gpt2 (byte-level BPE) or llama (SentencePiece)");

  const bool pieces = kind == "llama";
  json config{{"add_bos_token", metadata.flag("ggml.add_bos_token", pieces)},
              {"add_eos_token", metadata.flag("ggml.add_eos_token", false)}};
  for (const auto& [key, name] :
       {std::pair{"ggml.bos_token_id", "bos_token"}, {"ggml.eos_token_id", "eos_token"}}) {
    if (const auto id = metadata.id(key, vocabulary.tokens.size())) config[name] = vocabulary.tokens[*id];
  }
  if (metadata.has("chat_template")) config["chat_template"] = metadata.text("chat_template");
  files.config = config.dump(2) + "\n";
  return files;
}

}  // namespace switchyard
