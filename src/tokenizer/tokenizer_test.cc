// The tokenizers against outputs recorded from the public libraries
// (tests/golden/tokenizer), and against broken files.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "tokenizer/bpe.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

using nlohmann::json;

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/tokenizer/";

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, SameIdsAndTexts) {
  const json c = read_json_file(kGolden + "cases.json").at(GetParam());
  const auto tokenizer = make_tokenizer(c["type"], kGolden + c["file"].get<std::string>());
  EXPECT_EQ(tokenizer->vocab_size(), c["vocab_size"].get<std::int32_t>());
  EXPECT_EQ(json(tokenizer->bos().value_or(-1)), c["bos"].is_null() ? json(-1) : c["bos"]);
  EXPECT_EQ(json(tokenizer->eos().value_or(-1)), c["eos"].is_null() ? json(-1) : c["eos"]);
  for (const json& row : c["texts"]) {
    const auto ids = tokenizer->encode(row[0].get<std::string>());
    ASSERT_EQ(json(ids), row[1]) << row[0];
    ASSERT_EQ(tokenizer->decode(ids), row[2].get<std::string>()) << row[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenTokenizer,
                         ::testing::Values("llama3", "qwen", "deepseek", "gpt2", "behaviors", "llama2",
                                           "metaspace", "unigram", "bert", "word_ends", "sp_bpe",
                                           "sp_unigram", "tiktoken"));

TEST(ByteTokenizer, RoundTripOfAllBytes) {
  const auto tokenizer = make_tokenizer("byte", "");
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)), all);
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eos(), 256);
  EXPECT_FALSE(tokenizer->bos());
  EXPECT_EQ(tokenizer->decode(std::vector<std::int32_t>{65, 256, 300}), "A\xef\xbf\xbd");
}

template <typename Action>
void expect_error(Action action, const std::string& text) {
  try {
    action();
    ADD_FAILURE() << "accepted, expected an error with: " << text;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

TEST(MakeTokenizer, NamesWhatIsWrong) {
  expect_error([] { make_tokenizer("words", ""); }, "tokenizer_type=words: expected byte");
  expect_error([] { make_tokenizer("huggingface", ""); }, "tokenizer_path is empty");
  expect_error([] { make_tokenizer("huggingface", "deepseek-ai/DeepSeek-V3"); }, "hub are not downloaded");
  expect_error([] { make_tokenizer("sentencepiece", kGolden + "cases.json"); }, "not a SentencePiece model");
  expect_error([] { make_tokenizer("tiktoken", kGolden + "cases.json"); }, "expected a base64 token");
  expect_error([] { make_tokenizer("huggingface", kGolden + "cases.json"); }, "\"model\" is missing");
}

json minimal() {
  return {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

TEST(HuggingFace, RefusesWhatItDoesNotCompute) {
  const auto parse = [](const json& file) { parse_huggingface(file.dump(), "", "test"); };
  EXPECT_NO_THROW(parse(minimal()));
  const std::vector<std::pair<std::string, json>> changes = {
      {"model type \"Words\"", R"({"model":{"type":"Words"}})"_json},
      {"not a whole number", R"({"model":{"vocab":{"a":-1}}})"_json},
      {"not a whole number", R"({"model":{"vocab":{"a":99999999999}}})"_json},
      {"given twice", R"({"model":{"vocab":{"a":1}}})"_json},
      {"merge 0 is not", R"({"model":{"merges":["a c"]}})"_json},
      {"merge 0 is not", R"({"model":{"merges":[7]}})"_json},
      {"\"merges\" is not a list", R"({"model":{"merges":7}})"_json},
      {"unk_token", R"({"model":{"unk_token":"zz"}})"_json},
      {"dropout", R"({"model":{"dropout":0.1}})"_json},
      {"normalizer \"Uppercase\"", R"({"normalizer":{"type":"Uppercase"}})"_json},
      {"pre-tokenizer \"UnicodeScripts\"", R"({"pre_tokenizer":{"type":"UnicodeScripts"}})"_json},
      {"a ( without its )",
       R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}})"_json},
      {"does not compile",
       R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?<=a+)b"},"behavior":"Isolated"}})"_json},
      {"unknown behavior",
       R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":"a"},"behavior":"Odd"}})"_json},
      {"decoder \"CTC\"", R"({"decoder":{"type":"CTC"}})"_json},
      {"empty content", R"({"added_tokens":[{"id":5,"content":""}]})"_json},
      {"post-processor", R"({"post_processor":{"type":"Odd"}})"_json},
      {"\"cls\" is missing", R"({"post_processor":{"type":"BertProcessing"}})"_json},
  };
  for (const auto& [message, change] : changes) {
    json file = minimal();
    for (const auto& [key, value] : change.items()) {
      if (key == "model")
        file["model"].update(value, true);
      else
        file[key] = value;
    }
    expect_error([&, &f = file] { parse(f); }, message);
  }
  expect_error([&] { parse_huggingface("[]", "", "test"); }, "expected an object");
  expect_error([&] { parse_huggingface("{", "", "test"); }, "not valid JSON");
}

TEST(HuggingFace, EndOfTextFromItsConfig) {
  json file = minimal();
  file["added_tokens"] = {{{"id", 9}, {"content", "<stop>"}, {"special", true}}};
  const auto plain = parse_huggingface(file.dump(), "", "test");
  EXPECT_FALSE(plain->eos());
  EXPECT_EQ(plain->vocab_size(), 10);
  EXPECT_EQ(parse_huggingface(file.dump(), R"({"eos_token":"<stop>"})", "test")->eos(), 9);
  EXPECT_EQ(parse_huggingface(file.dump(), R"({"eos_token":{"content":"<stop>"}})", "test")->eos(), 9);
  EXPECT_EQ(parse_huggingface(file.dump(), R"({"bos_token":"<stop>","add_bos_token":true})", "test")->bos(),
            9);
  EXPECT_EQ(plain->decode(std::vector<std::int32_t>{2, 9, 77}), "ab");
}

// transformers adds what the vocabulary lacks: tokens with a stated id, then eos_token and its like, then
// the additional ones.
TEST(HuggingFace, TokensOfItsConfig) {
  const auto parse = [](const std::string& config) {
    return parse_huggingface(minimal().dump(), config, "test");
  };
  using Ids = std::vector<std::int32_t>;
  const auto named = parse(R"({"eos_token":"<e>","additional_special_tokens":["<s>","<e>"]})");
  EXPECT_EQ(named->encode("<s>ab<e>"), (Ids{4, 2, 3}));
  EXPECT_EQ(named->eos(), 3);
  EXPECT_EQ(named->vocab_size(), 5);
  EXPECT_EQ(named->decode(Ids{4, 2, 3}), "ab");
  const auto stated = parse(
      R"({"added_tokens_decoder":{"7":{"content":"<x>"},"3":{"content":"<y>","special":true,"lstrip":true}},
          "pad_token":{"content":"<p>"}, "eos_token":"<y>", "mask_token":null})");
  EXPECT_EQ(stated->encode("ab <y><x><p>"), (Ids{2, 3, 7, 8}));
  EXPECT_EQ(stated->decode(Ids{2, 3, 7}), "ab <x>");
  EXPECT_EQ(stated->eos(), 3);
  // A token of the vocabulary that the file does not list as added.
  const auto whole = parse(R"({"eos_token":"b"})");
  EXPECT_EQ(whole->encode("ab"), (Ids{0, 1}));
  EXPECT_EQ(whole->decode(Ids{0, 1}), "a");
  expect_error([&] { parse(R"({"added_tokens_decoder":{"1":{"content":"<x>"}}})"); }, "\"<x>\" has id 1");
  expect_error([&] { parse(R"({"added_tokens_decoder":{"9":{"content":"ab"}}})"); }, "\"ab\" has id 9");
  expect_error([&] { parse(R"({"added_tokens_decoder":{"x":{"content":"ab"}}})"); }, "which is no id");
  expect_error([&] { parse(R"({"eos_token":7})"); }, "is not a token");
}

TEST(HuggingFace, FlagsOfItsConfigForTheEnds) {
  json file = minimal();
  file["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"a", 0}}, {"sep", {"b", 1}}};
  EXPECT_EQ(parse_huggingface(file.dump(), "", "test")->bos(), 0);
  const auto plain = parse_huggingface(file.dump(), R"({"add_bos_token":false})", "test");
  EXPECT_FALSE(plain->bos());
  EXPECT_FALSE(plain->ends_prompts());
  EXPECT_EQ(encode_prompt(*plain, "ab", true, true), (std::vector<std::int32_t>{2}));
  const auto both = parse_huggingface(file.dump(), R"({"add_eos_token":true})", "test");
  EXPECT_EQ(encode_prompt(*both, "ab", true, true), (std::vector<std::int32_t>{0, 2, 1}));
  EXPECT_EQ(encode_prompt(*both, "ab", false, false), (std::vector<std::int32_t>{2}));
}

TEST(SentencePiece, TokensAndFlagsOfItsConfig) {
  using Ids = std::vector<std::int32_t>;
  const std::string model = read_whole_file(kGolden + "sp_bpe.model");
  const auto plain = parse_sentencepiece(model, "", "test");
  const auto parse = [&](const std::string& config) { return parse_sentencepiece(model, config, "test"); };
  const std::int32_t next = plain->vocab_size();
  EXPECT_EQ(plain->encode("</s>"), (Ids{*plain->eos()}));
  EXPECT_FALSE(parse(R"({"add_bos_token":false})")->bos());
  EXPECT_TRUE(parse(R"({"add_eos_token":true})")->ends_prompts());
  const auto more = parse(R"({"eos_token":"<e>","added_tokens_decoder":{")" + std::to_string(next) +
                          R"(":{"content":"<x>"}}})");
  EXPECT_EQ(more->vocab_size(), next + 2);
  EXPECT_EQ(more->eos(), next + 1);
  EXPECT_EQ(more->bos(), plain->bos());
  Ids ids = plain->encode("the");
  ids.push_back(next);
  for (const std::int32_t id : plain->encode("the")) ids.push_back(id);
  ids.push_back(next + 1);
  EXPECT_EQ(more->encode("the<x>the<e>"), ids);
  EXPECT_EQ(more->decode(ids), "the<x> the");
  EXPECT_EQ(more->decode(Ids{next, next + 1, next + 2}), "<x>" + plain->decode(Ids{next}));
  expect_error([&] { parse(R"({"added_tokens_decoder":{"5":{"content":"<x>"}}})"); }, "\"<x>\" has id 5");
}

// Ids of transformers 5.24 (LlamaTokenizer) by `legacy`.
TEST(SentencePiece, SpaceBehindACutOutToken) {
  using Ids = std::vector<std::int32_t>;
  const std::string model = read_whole_file(kGolden + "sp_bpe.model"), text = "the</s>the cat</s> the";
  const auto ids = [&](const std::string& config) {
    return parse_sentencepiece(model, config, "test")->encode(text);
  };
  const Ids behind_each{266, 2, 266, 267, 271, 2, 266}, once{266, 2, 408, 415, 406, 267, 271, 2, 266};
  EXPECT_EQ(ids(R"({"tokenizer_class":"LlamaTokenizer"})"), once);
  EXPECT_EQ(ids(R"({"tokenizer_class":"LlamaTokenizer","legacy":false})"), once);
  EXPECT_EQ(ids(R"({"tokenizer_class":"LlamaTokenizer","legacy":true})"), behind_each);
  EXPECT_EQ(parse_sentencepiece(model, R"({"legacy":false})", "test")->encode("</s>the"),
            (Ids{2, 408, 415, 406}));
}

// Tokens in files of their own, as folders had them before tokenizer_config.json had them all.
TEST(OlderFolders, TokensInFilesOfTheirOwn) {
  const std::string folder = testing::TempDir() + "older_folder_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  };
  write("tokenizer.model", read_whole_file(kGolden + "sp_bpe.model"));
  const std::int32_t next = make_tokenizer("sentencepiece", folder + "/tokenizer.model")->vocab_size();
  write("added_tokens.json",
        R"({"<end>":)" + std::to_string(next + 1) + R"(,"<x>":)" + std::to_string(next) + "}");
  write("special_tokens_map.json",
        R"({"eos_token":{"content":"<end>"},"additional_special_tokens":["<x>"]})");
  const auto made = [&] { return make_tokenizer("sentencepiece", folder + "/tokenizer.model"); };
  EXPECT_EQ(made()->eos(), next + 1);
  EXPECT_EQ(made()->encode("<x><end>"), (std::vector<std::int32_t>{next, next + 1}));
  EXPECT_EQ(made()->decode(made()->encode("<x><end>")), "");  // special, both
  EXPECT_EQ(tokenizer_files("sentencepiece", folder + "/tokenizer.model").size(), 3u);
  write("tokenizer_config.json", R"({"eos_token":"</s>"})");  // of an older folder: the map counts
  EXPECT_EQ(made()->eos(), next + 1);
  write("tokenizer_config.json", R"({"eos_token":"</s>","added_tokens_decoder":{")" + std::to_string(next) +
                                     R"(":{"content":"<y>"}}})");
  EXPECT_EQ(made()->eos(), 2);
  EXPECT_EQ(made()->encode("<y>"), (std::vector<std::int32_t>{next}));
  EXPECT_EQ(tokenizer_files("sentencepiece", folder + "/tokenizer.model").size(), 2u);
  write("tokenizer_config.json", "[]");
  expect_error(made, "tokenizer_config.json: expected an object");
  std::filesystem::remove_all(folder);
}

TEST(Tiktoken, RefusesBrokenLines) {
  expect_error([] { parse_tiktoken("", "", "test"); }, "no token for byte 0");
  expect_error([] { parse_tiktoken("AA== 0\nAA== 1\n", "", "test"); }, "test:2: token or rank 1 is given twice");
  for (const char* line :
       {"AA==", "AA== x", "AA== -1", "A 0", "!!!! 0", "AA== 99999999999", "AA== 1 2", " 0", "=== 0"}) {
    expect_error([&] { parse_tiktoken(line, "", "test"); }, "test:1: expected a base64 token");
  }
}

TEST(Utf8, BrokenBytesBecomeReplacements) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(valid_utf8("a\xff"), "a" + r);
  EXPECT_EQ(valid_utf8("\xc0\x80"), r + r);          // overlong
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(valid_utf8("\xf4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(valid_utf8("\xe6\x97"), r + r);  // cut off
  for (std::uint32_t c : {0x24u, 0xe9u, 0x65e5u, 0x1f642u, 0x10ffffu})
    EXPECT_EQ(valid_utf8(utf8_of(c)), utf8_of(c));
}

TEST(Regex, EmptyMatchesAndLongRunsEnd) {
  using Matches = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(Regex("x*", "test").matches("axxé"), (Matches{{0, 0}, {1, 3}, {5, 5}}));
  EXPECT_EQ(Regex("$|^", "test").matches("a\n"), (Matches{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(Regex("", "test").matches(""), (Matches{{0, 0}}));
  EXPECT_EQ(Regex(R"(\s+(?!\S)|\s+)", "test").matches(std::string(100000, ' ') + "x").size(), 2u);
}

TEST(Bpe, LowestRankThenLeftmost) {
  // a=0, aa=1, aaaa=2: "aaaaa" joins from the left.
  const auto pair = [](const BpeSymbol& a, const BpeSymbol& b, std::int32_t) -> std::optional<BpeMerge> {
    if (a.id == 0 && b.id == 0) return BpeMerge{0, 1};
    if (a.id == 1 && b.id == 1) return BpeMerge{1, 2};
    return std::nullopt;
  };
  std::vector<std::int32_t> ids;
  bpe_merge(std::vector<BpeSymbol>(5, {0, 1}), pair, ids);
  EXPECT_EQ(ids, (std::vector<std::int32_t>{2, 0}));
  ids.clear();
  bpe_merge({}, pair, ids);
  EXPECT_TRUE(ids.empty());
}

}  // namespace
}  // namespace switchyard
