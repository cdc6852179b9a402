#include "gguf/gguf_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/metadata.h"
#include "tokenizer/split_patterns.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Token kinds, numbered as SentencePiece's pieces are.
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

// How texts are split before merges. The expressions are those of the models' published tokenizer.json.
struct Splits {
  std::vector<std::string_view> names;        // that llama.cpp gives the rule
  std::vector<std::string_view> expressions;  // each isolates its matches in what those before left
  bool whole_pieces = false;                  // a piece of the vocabulary is a token, whatever the merges say
  bool begins = false;                        // add_bos_token, where the file does not say
};

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"((?i:'s|'d|'m|'t|'ll|'ve|'re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kExaoneMoe =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
// The letters that have two cases, as of Unicode 11.
constexpr std::string_view kDeepseekLlmWords =
    R"(\s?[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c})"
    R"(\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5})"
    R"(\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b})"
    R"(\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45})"
    R"(\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4})"
    R"(\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb})"
    R"(\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115})"
    R"(\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139})"
    R"(\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4})"
    R"(\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f})"
    R"(\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17})"
    R"(\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb})"
    R"(\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]+)";
constexpr std::string_view kDeepseekLlmMarks =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr std::string_view kDeepseekLlmScripts = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";

const std::vector<Splits>& known_splits() {
  static const std::vector<Splits> splits{
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
        "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"},
       {kGpt2}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {kLlama3Split},
       true,
       true},
      {{"glm4", "minicpm5"}, {kLlama3Split}, true},
      {{"chatglm-bpe", "dbrx", "smaug-bpe"}, {kLlama3Split}},
      {{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "grok-2",
        "solar-open"},
       {kQwenSplit}},
      {{"qwen35"}, {kQwen35}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailing}},
      {{"seed-coder"}, {kSeedCoder}},
      {{"exaone-moe"}, {kExaoneMoe}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {kGpt4oSplit}},
      {{"tekken"}, {kTekken}, true, true},
      {{"kimi-k2"}, {kKimiSplit}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", kDeepseekWords}},
      {{"deepseek-llm"},
       {R"([\r\n])", kDeepseekLlmWords, kDeepseekLlmMarks, R"(\s+$)", kDeepseekLlmScripts, R"(\p{N}+)"}},
      {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepseekLlmScripts, R"(\p{N})"}},
      {{"starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"},
       {R"(\p{N})", kGpt2}},
      {{"falcon"}, {R"([\p{P}$+<=>^~|`]+)", kGpt2, "[0-9][0-9][0-9]"}},
      {{"default"}, {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
  };
  return splits;
}

// Files from before llama.cpp had names for the rules have none.
const Splits& splits_of(const GgufMetadata& metadata) {
  const std::string name = metadata.has("ggml.pre") ? metadata.text("ggml.pre") : "default";
  std::string names;
  for (const Splits& splits : known_splits()) {
    for (const std::string_view known : splits.names) {
      if (known == name) return splits;
      names += (names.empty() ? "" : ", ") + std::string(known);
    }
  }
  metadata.wrong("ggml.pre", "one of " + names);
}

json pre_tokenizer_of(const Splits& splits) {
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

// An added token in the form of tokenizer.json and tokenizer_config.json.
json added_token(const std::string& content, TokenType type) {
  return {{"content", content}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false},    {"normalized", false},  {"special", type != TokenType::user_defined}};
}

// Found in a text before anything else is done with it.
bool is_added(TokenType type) {
  return type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined;
}

std::string byte_level_bpe(const GgufMetadata& metadata, const Vocabulary& vocabulary) {
  json added = json::array(), ids = json::object();
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (!ids.emplace(vocabulary.tokens[i], i).second)
      metadata.wrong("ggml.tokens", fmt::format("each once, got {} twice", in_quotes(vocabulary.tokens[i])));
    if (!is_added(vocabulary.types[i])) continue;
    added.push_back(added_token(vocabulary.tokens[i], vocabulary.types[i]));
    added.back()["id"] = i;
  }
  const Splits& splits = splits_of(metadata);
  return json{
      {"version", "1.0"},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer_of(splits)},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", ids},
        {"merges", metadata.list("ggml.merges")},
        {"ignore_merges", splits.whole_pieces}}}}
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
  const auto id = [&](const char* key, std::size_t usual) {  // -1: none
    return static_cast<std::uint64_t>(
        metadata.id(key, size).value_or(usual < size ? usual : ~std::size_t{0}));
  };
  constexpr std::uint64_t kBpe = 2;
  model.text(2, Message()
                    .number(3, kBpe)
                    .number(4, size)
                    .number(35, bytes)
                    .number(40, *unknown)
                    .number(41, id("ggml.bos_token_id", 1))
                    .number(42, id("ggml.eos_token_id", 2))
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
  // <|end|> stands between two parts of one text where messages have ends of their own.
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

namespace {

TokenizerFiles files_of(const GgufFile& file) {
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
  const bool begins = pieces || splits_of(metadata).begins;
  json config{{"add_bos_token", metadata.flag("ggml.add_bos_token", begins)},
              {"add_eos_token", metadata.flag("ggml.add_eos_token", false)}};
  for (std::size_t i = 0; pieces && i < vocabulary.tokens.size(); ++i) {
    if (is_added(vocabulary.types[i]) && !vocabulary.tokens[i].empty())
      config["added_tokens_decoder"][std::to_string(i)] =
          added_token(vocabulary.tokens[i], vocabulary.types[i]);
  }
  for (const auto& [key, name] :
       {std::pair{"ggml.bos_token_id", "bos_token"}, {"ggml.eos_token_id", "eos_token"}}) {
    if (const auto id = metadata.id(key, vocabulary.tokens.size())) config[name] = vocabulary.tokens[*id];
  }
  if (metadata.has("chat_template")) config["chat_template"] = metadata.text("chat_template");
  if (metadata.has("chat_template.tool_use")) {
    json templates =
        json::array({{{"name", "tool_use"}, {"template", metadata.text("chat_template.tool_use")}}});
    if (config.contains("chat_template"))
      templates.push_back({{"name", "default"}, {"template", config["chat_template"]}});
    config["chat_template"] = templates;
  }
  files.config = config.dump(2) + "\n";
  return files;
}

}  // namespace

TokenizerFiles tokenizer_files_of(const GgufFile& file) {
  try {
    return files_of(file);
  } catch (const json::exception&) {  // JSON refuses nothing else as it is written
    fail_usage("[gguf] {}: a token, a merge or the chat template is no UTF-8", file.path());
  }
}

}  // namespace switchyard
