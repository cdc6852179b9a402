// Tokenizers in GGUF files against llama.cpp's ids of the same texts.
#include "gguf/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "core/testing.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

struct Case {
  const char* file;
  std::optional<std::int32_t> bos, eos;
  const char* ids;  // SentencePiece takes no control token from a text
};

TEST(GgufTokenizer, HasLlamaCppsIds) {
  const Case cases[]{{"gguf/qwen3moe/Q4_0.gguf", {}, 285, "ids_special_parsed"},
                     {"gguf/deepseek3/Q4_1.gguf", {}, 281, "ids_special_parsed"},
                     {"gguf/mixtral/F16.gguf", 1, 2, "ids"},
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
