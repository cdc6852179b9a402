// Tokenizers in GGUF files against llama.cpp's ids for the same texts.
#include "gguf/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "generate/token_text.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* file;
  std::optional<std::int32_t> bos, eos;
  const char* ids;
};

TEST(GgufTokenizer, HasLlamaCppsIds) {
  const Case cases[]{{"gguf/qwen3moe/Q4_0.gguf", {}, 285, "ids_special_parsed"},
                     {"gguf/deepseek3/Q4_1.gguf", {}, 281, "ids_special_parsed"},
                     {"gguf/mixtral/F16.gguf", 1, 2, "ids_special_parsed"},
                     {"gguf_tokenizers/gptoss/Q4_0.gguf", {}, 285, "ids_special_parsed"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.file);
    const fs::path file = fs::path(kSourceFolder) / "tests/golden" / c.file;
    const auto tokenizer = make_tokenizer(tokenizer_type_of(file), file);
    EXPECT_EQ(tokenizer->bos(), c.bos);
    EXPECT_EQ(tokenizer->eos(), c.eos);
    int texts = 0;
    for (const auto& expected : read_json_file((file.parent_path() / "tokenizer_cases.json").string())) {
      const auto text = expected.at("text").get<std::string>();
      SCOPED_TRACE(text);
      EXPECT_EQ(tokenizer->encode(text), expected.at(c.ids).get<std::vector<std::int32_t>>());
      ++texts;
    }
    EXPECT_EQ(texts, 31);
  }
}

const std::string kVocabularies = std::string(kSourceFolder) + "/tests/golden/gguf_tokenizers/";

// A vocabulary with `change` made in its bytes.
std::unique_ptr<Tokenizer> changed(const std::string& file, const std::function<void(std::string&)>& change) {
  std::string bytes = read_whole_file(kVocabularies + file);
  change(bytes);
  const std::string path = testing::TempDir() + "changed_" + file;
  std::ofstream(path, std::ios::binary) << bytes;
  return make_tokenizer("gguf", path);
}

// Where the value of a key begins: behind the key and the four bytes of its type.
std::size_t value_of(const std::string& bytes, const std::string& key) {
  const std::size_t at = bytes.find(key);
  CHECK(at != std::string::npos, "no key {}", key);
  return at + key.size() + 4;
}

// The name in the place of "default", as GGUF writes texts: eight bytes of length, then it.
void set_rule(std::string& bytes, const std::string& name) {
  std::string text(8, '\0');
  text[0] = static_cast<char>(name.size());
  bytes.replace(value_of(bytes, "tokenizer.ggml.pre"), 8 + std::string("default").size(), text + name);
}

void hide_key(std::string& bytes, const std::string& key) {
  bytes[bytes.find(key)] = 'T';
}

TEST(GgufTokenizer, SplitsAsLlamaCppByTheNameOfTheRule) {
  const auto cases = read_json_file(kVocabularies + "cases.json").at("bpe");
  const auto texts = cases.at("texts").get<std::vector<std::string>>();
  int rules = 0;
  for (const auto& rule : cases.at("rules")) {
    for (const auto& name : rule.at("names").get<std::vector<std::string>>()) {
      SCOPED_TRACE(name);
      const auto tokenizer = changed("bpe.gguf", [&](std::string& bytes) {
        if (name == "missing")
          hide_key(bytes, "tokenizer.ggml.pre");
        else
          set_rule(bytes, name);
      });
      EXPECT_EQ(tokenizer->bos().has_value(), rule.at("add_bos").get<bool>());
      for (std::size_t i = 0; i < texts.size(); ++i)
        EXPECT_EQ(tokenizer->encode(texts[i]), rule.at("ids")[i].get<std::vector<std::int32_t>>())
            << texts[i];
      ++rules;
    }
  }
  EXPECT_EQ(rules, 68);
  EXPECT_THROW(changed("bpe.gguf", [](std::string& bytes) { set_rule(bytes, "unheard"); }), Error);
}

// Control, unknown and user-defined pieces are found in texts; add_bos_token and add_eos_token count.
TEST(GgufTokenizer, PiecesAndEndsOfPromptsAsLlamaCpps) {
  const auto cases = read_json_file(kVocabularies + "cases.json").at("pieces");
  const auto texts = cases.at("texts").get<std::vector<std::string>>();
  for (const auto& flags : cases.at("flags")) {
    const bool add_bos = flags.at("add_bos"), add_eos = flags.at("add_eos");
    SCOPED_TRACE(fmt::format("add_bos_token={} add_eos_token={}", add_bos, add_eos));
    const auto tokenizer = changed("pieces.gguf", [&](std::string& bytes) {
      bytes[value_of(bytes, "tokenizer.ggml.add_bos_token")] = static_cast<char>(add_bos);
      bytes[value_of(bytes, "tokenizer.ggml.add_eos_token")] = static_cast<char>(add_eos);
    });
    for (std::size_t i = 0; i < texts.size(); ++i)
      EXPECT_EQ(encode_prompt(*tokenizer, texts[i], true, true),
                flags.at("ids")[i].get<std::vector<std::int32_t>>())
          << texts[i];
  }
  const auto silent = changed("pieces.gguf", [](std::string& bytes) {
    for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"})
      hide_key(bytes, key);
    for (const char* key : {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"})
      hide_key(bytes, key);
  });
  EXPECT_EQ(silent->bos(), 1);
  EXPECT_EQ(silent->eos(), 2);
  EXPECT_FALSE(silent->ends_prompts());
}

TEST(GgufTokenizer, TextsOfTokensKeepTheirSpaces) {
  const auto tokenizer = make_tokenizer("gguf", kVocabularies + "pieces.gguf");
  const auto ids = tokenizer->encode("a the ab x b");
  std::string joined;
  for (const std::int32_t id : ids) joined += text_within(*tokenizer, id);
  EXPECT_EQ(joined, " a the ab x b");
  EXPECT_EQ(tokenizer->decode(ids), "a the ab x b");
  EXPECT_EQ(text_within(*tokenizer, 260), "a");
  EXPECT_EQ(text_within(*tokenizer, 3 + 'a'), "a");  // a byte
  EXPECT_EQ(text_within(*tokenizer, 1), "");
  EXPECT_EQ(text_within(*make_tokenizer("byte", ""), 'a'), "a");
}

// Its keys and its well-known names; of messages in parts, as gpt-oss has them, <|end|> ends no text.
TEST(GgufTokenizer, KnowsWhatEndsATextByKeyAndByName) {
  const fs::path golden = fs::path(kSourceFolder) / "tests/golden";
  const auto ends = [&](const char* file) { return end_tokens_of(GgufFile::open((golden / file).string())); };
  using Ids = std::vector<std::int64_t>;
  EXPECT_EQ(ends("gguf_small/ends.gguf"), (Ids{28, 29, 30}));  // eos <|end|>, eot <|turn|>, <|im_end|>
  std::string bytes = read_whole_file((golden / "gguf_small/ends.gguf").string());
  const auto named = [&](const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at + 1))
      bytes.replace(at, from.size(), to);
  };
  const auto parsed = [&] {
    return end_tokens_of(GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf"));
  };
  named("<|im_end|>", "<|nothing>");
  named("tokenizer.ggml.eot_token_id", "tokenizer.ggml.xxx_token_id");
  EXPECT_EQ(parsed(), Ids{28});
  named("tokenizer.ggml.xxx_token_id", "tokenizer.ggml.eom_token_id");
  EXPECT_EQ(parsed(), (Ids{28, 29}));
  named("<|nothing>", "<|return|>");
  named("<|turn|>", "<|call|>");
  EXPECT_EQ(parsed(), (Ids{28, 29, 30})) << "it is the eos_token_id still";
  named("tokenizer.ggml.eos_token_id", "tokenizer.ggml.xxx_token_id");
  EXPECT_EQ(parsed(), (Ids{29, 30}));
}

}  // namespace
}  // namespace switchyard
