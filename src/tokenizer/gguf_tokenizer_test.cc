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

}  // namespace
}  // namespace switchyard
