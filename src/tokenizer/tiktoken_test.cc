// Files of base64 tokens and ranks: Kimi's folder (tests/golden/tokenizer/kimi), and files that say too little.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {
namespace {

using nlohmann::json;
using IdList = std::vector<std::int32_t>;

const std::string kKimi = std::string(kSourceFolder) + "/tests/golden/tokenizer/kimi";

void expect_refused(const std::function<void()>& action, const std::string& text) {
  try {
    action();
    ADD_FAILURE() << "accepted, expected an error with: " << text;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

TEST(Kimi, IdsOfItsFolderAndItsFile) {
  for (const std::string& path : {kKimi, kKimi + "/tiktoken.model"}) {
    EXPECT_EQ(tokenizer_type_of(path), "tiktoken");
    const auto tokenizer = make_tokenizer("tiktoken", path);
    for (const json& row : read_json_file(kKimi + "/expected.json")) {
      const auto text = row.at("text").get<std::string>();
      EXPECT_EQ(json(tokenizer->encode(text)), row.at("ids")) << text;
      EXPECT_EQ(tokenizer->decode_all(row.at("ids").get<IdList>()), text);
    }
  }
}

TEST(Kimi, SpecialTokensFollowTheRanks) {
  const auto tokenizer = make_tokenizer("tiktoken", kKimi);
  EXPECT_EQ(tokenizer->vocab_size(), 394 + 256);
  EXPECT_EQ(tokenizer->bos(), 394);
  EXPECT_EQ(tokenizer->eos(), 395);
  // 399 is none of added_tokens_decoder.
  EXPECT_EQ(tokenizer->encode("<|reserved_token_399|>"), (IdList{399}));
  EXPECT_EQ(tokenizer->decode_all(IdList{399, 649}), "<|reserved_token_399|>[PAD]");
  EXPECT_EQ(tokenizer->decode(IdList{399}), "");
  EXPECT_FALSE(tokenizer->token_bytes(399));
  EXPECT_EQ(tokenizer->decode(IdList{650}), "\xef\xbf\xbd");
  const TextRange all[] = {{0, 10}};
  EXPECT_NE(tokenizer->encode_with_special("<|im_end|>", all), (IdList{396}));
}

TEST(Kimi, RefusesSettingsThatDoNotFit) {
  const std::string ranks = read_whole_file(kKimi + "/tiktoken.model");
  const auto with = [&](const std::string& config) {
    return [=] { parse_tiktoken(ranks, config, "a/tiktoken.model"); };
  };
  EXPECT_NO_THROW(with("")());
  expect_refused(with(R"({"added_tokens_decoder":{"7":{"content":"x"}}})"), "which is a rank");
  expect_refused(with(R"({"added_tokens_decoder":{"400":{"content":"x"},"401":{"content":"<|reserved_token_402|>"}}})"),
                 "the ids 401 and 402");
  expect_refused(with(R"({"bos_token":"<x>"})"), "bos_token is \"<x>\"");
  EXPECT_FALSE(parse_tiktoken(ranks, R"({"tokenizer_class":"TikTokenTokenizer","bos_token":"<|reserved_token_394|>",
                                         "add_bos_token":false})", "x")->bos());
  const auto further = parse_tiktoken(ranks, R"({"added_tokens_decoder":{"700":{"content":"<v>","special":false}}})",
                                      "tiktoken.model");
  EXPECT_EQ(further->vocab_size(), 701);
  EXPECT_EQ(further->decode(IdList{700}), "<v>");
}

TEST(Tiktoken, ModelFilesSayWhatIsUnknown) {
  const std::string ranks = read_whole_file(kKimi + "/tiktoken.model");
  expect_refused([&] { parse_tiktoken(ranks, "", "a/tokenizer.model"); }, "nothing says how a text is split");
  const std::string folder = ::testing::TempDir() + "/base64_model";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.model") << ranks;
  EXPECT_EQ(tokenizer_type_of(folder + "/tokenizer.model"), "tiktoken");
  expect_refused([&] { make_tokenizer("sentencepiece", folder); }, "no file for tokenizer_type=sentencepiece");
  expect_refused([&] { make_tokenizer("sentencepiece", folder + "/tokenizer.model"); }, "tokenizer_type=tiktoken");
  ::testing::internal::CaptureStderr();
  EXPECT_NO_THROW(parse_tiktoken(ranks, "", "a.tiktoken"));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("394 ranks are no published vocabulary's"), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(Tiktoken, NamesTheLineOfAGap) {
  std::string ranks = read_whole_file(kKimi + "/tiktoken.model");
  const std::size_t place = ranks.rfind(" 393");
  expect_refused([&] { parse_tiktoken(ranks.replace(place, 4, " 395"), "", "a.tiktoken"); },
                 "a.tiktoken:394: rank 395 follows, but no line has rank 393");
}

TEST(Tiktoken, AFolderKeepsKimisName) {
  EXPECT_EQ(tokenizer_path_in("tiktoken", "f", "x/tiktoken.model"), "f/tiktoken.model");
  EXPECT_EQ(tokenizer_path_in("tiktoken", "f", "x/qwen.tiktoken"), "f/tokenizer.tiktoken");
  EXPECT_EQ(tokenizer_path_in("tiktoken", kKimi), kKimi + "/tiktoken.model");
}

}  // namespace
}  // namespace switchyard
