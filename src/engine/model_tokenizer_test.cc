// Tests the public tokenizer; python/tests/test_tokenizer.py compares it with other libraries.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/json_file.h"
#include "engine/engine_testing.h"
#include "switchyard/tokenizer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return std::string(kSourceFolder) + "/tests/golden/" + name;
}

constexpr const char* kConfig =
    R"({"bos_token": "<|begin|>", "eos_token": "<|end|>",
        "chat_template": "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"})";
constexpr const char* kChat = R"({"messages": [{"role": "user", "content": "<|end|>"}]})";

TEST(ModelTokenizer, EncodesAndChats) {
  const std::string text = read_whole_file(golden("tokenizer/llama3.json"));
  const fs::path folder = fs::path(::testing::TempDir()) / "model_tokenizer";
  fs::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << text;
  std::ofstream(folder / "tokenizer_config.json") << kConfig;
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [7, 501]})";
  const ModelTokenizer of_folder = ModelTokenizer::of(folder),
                       of_texts = ModelTokenizer::of_json(text, kConfig);
  for (const ModelTokenizer& tokenizer : {of_folder, of_texts}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("two lines\n")), "two lines\n");
    EXPECT_EQ(tokenizer.chat_text(kChat), "<|begin|>user:<|end|>");
    const std::vector<std::int32_t> tokens = tokenizer.chat_tokens(kChat);
    EXPECT_EQ(tokens[0], tokenizer.begin_token());
    EXPECT_EQ(std::ranges::count(tokens, *tokenizer.end_token()), 0);  // the message's own text
    EXPECT_EQ(tokenizer.decode(tokens, true), "<|begin|>user:<|end|>");
  }
  EXPECT_EQ(of_folder.end_tokens(), (std::vector<std::int32_t>{7, 501}));
  EXPECT_EQ(of_texts.end_tokens(), (std::vector<std::int32_t>{501}));
  fs::remove_all(folder);
}

TEST(ModelTokenizer, RefusesInOneLine) {
  const ModelTokenizer byte = ModelTokenizer::of("byte");
  EXPECT_EQ(byte.encode("ab"), (std::vector<std::int32_t>{97, 98}));
  expect_error([&] { byte.chat_text(kChat); }, "expected a chat template");
  expect_error([] { ModelTokenizer::of("no-such.json"); }, "no-such.json");
  expect_error([] { ModelTokenizer::of(golden("hf/qwen3moe-tiny")); }, "expected a tokenizer in it");
}

}  // namespace
}  // namespace switchyard
