// encode_with_special, decode_all and token_bytes of every kind of tokenizer.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/json_file.h"
#include "core/testing.h"
#include "tokenizer/plain_ranges.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

using TokenIds = std::vector<std::int32_t>;

std::string golden_path(const std::string& file) {
  return std::string(kSourceFolder) + "/tests/golden/" + file;
}

std::unique_ptr<Tokenizer> golden_tokenizer(const std::string& name) {
  const nlohmann::json c = read_json_file(golden_path("tokenizer/cases.json")).at(name);
  return make_tokenizer(c["type"], golden_path("tokenizer/" + c["file"].get<std::string>()));
}

std::vector<TextRange> whole(const std::string& text) {
  return {{0, text.size()}};
}

// The text cut where its tokens end; empty where no places are known.
std::vector<std::string> pieces_of(const Tokenizer& tokenizer, const std::string& text) {
  const std::optional<PlacedTokens> placed = tokenizer.encode_with_places(text);
  if (!placed) return {};
  EXPECT_EQ(placed->ids, tokenizer.encode_with_special(text));
  EXPECT_EQ(placed->ids.size(), placed->ends.size());
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  for (const std::size_t end : placed->ends) {
    EXPECT_LE(begin, end);
    pieces.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return pieces;
}

TEST(Places, AreTheTokensOwnBytes) {
  for (const char* name : {"llama3", "qwen", "deepseek", "gpt2", "llama2", "sp_bpe", "tiktoken"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = golden_tokenizer(name);
    const nlohmann::json cases = read_json_file(golden_path("tokenizer/cases.json")).at(name);
    int known = 0, all = 0;
    for (const nlohmann::json& row : cases["texts"]) {
      const auto text = row[0].get<std::string>();
      const std::vector<std::string> pieces = pieces_of(*tokenizer, text);
      if (text.empty()) continue;
      ++all;
      known += pieces.empty() ? 0 : 1;
      const auto ids = tokenizer->encode_with_special(text);
      if (normal_form(text, NormalForm::nfc) != text || normal_form(text, NormalForm::nfkc) != text) continue;
      for (std::size_t i = 1; i < pieces.size(); ++i) {  // the first may have a space of the tokenizer's own
        const auto bytes = tokenizer->token_bytes(ids[i]);
        if (!bytes || !tokenizer->token_bytes(ids[i - 1])) continue;
        EXPECT_EQ(pieces[i], *bytes) << text;
      }
    }
    // Pieces drop spaces, and read a character of the text as one.
    const bool pieces = name == std::string("llama2") || name == std::string("sp_bpe");
    EXPECT_GE(known * 10, all * (pieces ? 5 : 9)) << known << " of " << all;
  }
}

// A normal form moves places by whole characters; what one becomes shares the character's bytes.
TEST(Places, ThroughANormalForm) {
  const auto qwen = golden_tokenizer("qwen");
  const std::string text = "cafe\xcc\x81 ok";
  const auto placed = qwen->encode_with_places(text);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->ends.back(), text.size());
  EXPECT_NE(std::ranges::find(placed->ends, text.find(" ok")), placed->ends.end());
  EXPECT_TRUE(std::ranges::is_sorted(placed->ends));
}

TEST(Places, OfBytes) {
  EXPECT_EQ(pieces_of(*make_tokenizer("byte", ""), "a\xc3\xa4"),
            (std::vector<std::string>{"a", "\xc3", "\xa4"}));
}

// Encodes with the first occurrence of `part` plain.
TokenIds with_plain(const Tokenizer& tokenizer, const std::string& text, const std::string& part) {
  const std::size_t at = text.find(part);
  return tokenizer.encode_with_special(text, std::vector<TextRange>{{at, at + part.size()}});
}

class SpecialTexts : public ::testing::TestWithParam<const char*> {};

TEST_P(SpecialTexts, EncodeAsOtherTextsAndDecodeToThem) {
  const auto tokenizer = golden_tokenizer(GetParam());
  const nlohmann::json rows = read_json_file(golden_path("tokenizer/cases.json")).at(GetParam())["texts"];
  ASSERT_FALSE(rows.empty());
  for (const auto& row : rows) {
    const auto text = row[0].get<std::string>();
    const TokenIds ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->encode_with_special(text), ids) << text;
    TokenIds ordinary = ids;
    std::erase_if(ordinary, [&](std::int32_t id) { return !tokenizer->token_bytes(id); });
    std::string bytes;
    for (const std::int32_t id : ordinary) bytes += *tokenizer->token_bytes(id);
    std::string decoded = tokenizer->decode(ordinary);
    EXPECT_EQ(tokenizer->decode_all(ordinary), decoded);
    bytes = repaired_utf8(bytes);
    // A token's bytes have nothing that a decoder drops at a text's beginning or end. Unknown tokens have no
    // bytes at all.
    const std::string name = GetParam();
    if (name == "bert" || name == "word_ends" || name == "unigram") continue;
    if (bytes == " " + decoded || bytes == "  " + decoded) bytes = decoded;
    if (bytes.find("\xef\xbf\xbd") != std::string::npos) continue;
    EXPECT_EQ(bytes, decoded) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SpecialTexts,
                         ::testing::Values("llama3", "qwen", "deepseek", "gpt2", "behaviors", "llama2",
                                           "metaspace", "unigram", "bert", "word_ends", "sp_bpe",
                                           "sp_unigram", "tiktoken"));

TEST(SpecialTexts, AreNotFoundInPlainRanges) {
  int found = 0;
  for (const char* name : {"llama3", "qwen", "deepseek", "gpt2", "behaviors", "llama2", "metaspace",
                           "unigram", "bert", "word_ends"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = golden_tokenizer(name);
    const nlohmann::json file = read_json_file(golden_path(std::string("tokenizer/") + name + ".json"));
    for (const auto& token : file.at("added_tokens")) {
      const auto content = token.at("content").get<std::string>();
      const auto id = token.at("id").get<std::int32_t>();
      const std::string text = content + "the " + content + " of";
      // Some tokens match alone only, and the unknown token is used for other texts, too.
      if (content == "<unk>" || std::ranges::count(tokenizer->encode_with_special(text), id) != 2) continue;
      if (std::ranges::all_of(content, [](char c) { return c == ' '; })) continue;
      ++found;
      EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text, whole(text)), id), 0) << content;
      // The last byte of the first one is enough.
      const std::vector<TextRange> touched{{content.size() - 1, content.size() + 2}};
      EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text, touched), id), 1) << content;
    }
  }
  EXPECT_GT(found, 10);
}

nlohmann::json small_file() {
  return nlohmann::json::parse(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"<":3,">":4,"<a>":5,"<a":6},
    "merges":["a b","< a","<a >"]},
    "added_tokens":[{"id":5,"content":"<a>","special":true},{"id":9,"content":"<b>","special":false},
                    {"id":10,"content":"<b>b","special":true},{"id":11,"content":"  ","special":false}]})");
}

TEST(SpecialTexts, ShorterOnesAreFoundBesideAPlainRange) {
  const auto tokenizer = parse_huggingface(small_file().dump(), "", "test");
  EXPECT_EQ(tokenizer->encode_with_special("<b>b"), TokenIds{10});
  EXPECT_EQ(tokenizer->encode_with_special("<b>b", std::vector<TextRange>{{3, 4}}), (TokenIds{9, 1}));
  EXPECT_EQ(tokenizer->encode_with_special("<b>b", std::vector<TextRange>{{3, 3}}), TokenIds{10});
}

TEST(SpecialTexts, OfTheModelsOwnVocabularyAreBrokenUp) {
  const auto tokenizer = parse_huggingface(small_file().dump(), "", "test");
  EXPECT_EQ(tokenizer->encode_with_special("a<a>", std::vector<TextRange>{{0, 4}}), (TokenIds{0, 3, 0, 4}));
}

TEST(SpecialTexts, OfWhiteSpaceAreTextAnywhere) {
  const auto tokenizer = parse_huggingface(small_file().dump(), "", "test");
  EXPECT_EQ(tokenizer->encode_with_special("a  b", std::vector<TextRange>{{0, 4}}), (TokenIds{0, 11, 1}));
}

// Places move when a text is normalised.
TEST(SpecialTexts, AreToldApartInNormalisedText) {
  nlohmann::json file = small_file();
  file["normalizer"] = nlohmann::json::parse(
      R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"ab"},{"type":"NFC"}]})");
  file["added_tokens"][1]["content"] = "b>";
  file["added_tokens"][1]["normalized"] = true;  // "abb>" once normalised
  const auto tokenizer = parse_huggingface(file.dump(), "", "test");
  const std::string decomposed = "e\xcc\x81";
  const std::string text = "abb>" + decomposed + "abb>";
  EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text), 9), 2);
  const std::vector<TextRange> plain{{4, text.size()}};
  EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text, plain), 9), 1);
}

TEST(SpecialTexts, OfSentencePieceModels) {
  for (const char* name : {"sp_bpe", "sp_unigram"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = golden_tokenizer(name);
    const std::string text = "the</s>the cat</s>";
    EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text), 2), 2);
    EXPECT_EQ(std::ranges::count(with_plain(*tokenizer, text, "the cat</s>"), 2), 1);
    EXPECT_EQ(std::ranges::count(tokenizer->encode_with_special(text, whole(text)), 2), 0);
    EXPECT_EQ(tokenizer->decode_all(tokenizer->encode_with_special("the</s>")), "the</s>");
    EXPECT_EQ(tokenizer->decode_all(TokenIds{1}), "<s>");
    EXPECT_FALSE(tokenizer->token_bytes(1));
    EXPECT_FALSE(tokenizer->token_bytes(0));
    EXPECT_FALSE(tokenizer->token_bytes(-1));
    EXPECT_FALSE(tokenizer->token_bytes(tokenizer->vocab_size()));
    const TokenIds the = tokenizer->encode("the");
    EXPECT_EQ(tokenizer->token_bytes(the[0])->substr(0, 1), " ");
  }
}

TEST(SpecialTexts, OfUsersPieces) {
  const auto tokenizer = make_tokenizer("gguf", golden_path("gguf_tokenizers/pieces.gguf"));
  int users = 0;
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const std::string text = tokenizer->decode_all(TokenIds{id});
    if (!text.starts_with('<') || text.size() < 3) continue;
    const TokenIds found = tokenizer->encode_with_special("ab" + text + "ab");
    if (!std::ranges::count(found, id)) continue;
    ++users;
    EXPECT_EQ(std::ranges::count(with_plain(*tokenizer, "ab" + text + "ab", text), id), 0) << text;
  }
  EXPECT_GT(users, 2);
  EXPECT_EQ(tokenizer->token_bytes(3 + 0xff), "\xff");
}

TEST(SpecialTexts, OfTiktokenFiles) {
  const auto tokenizer = golden_tokenizer("tiktoken");  // of 500 ranks
  const std::string text = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nthe <|eot_id|>";
  const TokenIds ids = tokenizer->encode_with_special(text);
  EXPECT_EQ(ids[0], 500);
  EXPECT_EQ(ids[1], 506);
  EXPECT_EQ(ids.back(), 509);
  EXPECT_EQ(tokenizer->decode_all(ids), text);
  EXPECT_EQ(tokenizer->decode(ids), "user\n\nthe ");
  EXPECT_EQ(tokenizer->encode_with_special(text, whole(text)), tokenizer->encode(text));
  EXPECT_EQ(with_plain(*tokenizer, text, "the <|eot_id|>").front(), 500);
  EXPECT_LT(with_plain(*tokenizer, text, "the <|eot_id|>").back(), 500);
  EXPECT_FALSE(tokenizer->token_bytes(500));
  std::string bytes;
  for (const std::int32_t id : tokenizer->encode("日本 \n")) bytes += *tokenizer->token_bytes(id);
  EXPECT_EQ(bytes, "日本 \n");
  EXPECT_EQ(tokenizer->decode_all(TokenIds{755}), "<|reserved_special_token_247|>");
}

TEST(SpecialTexts, OfBytes) {
  const auto tokenizer = make_tokenizer("byte", "");
  EXPECT_EQ(tokenizer->encode_with_special("<\xff"), (TokenIds{'<', 0xff}));
  EXPECT_EQ(tokenizer->decode_all(TokenIds{65, 256}), "A");
  EXPECT_EQ(tokenizer->token_bytes(0xff), "\xff");
  EXPECT_FALSE(tokenizer->token_bytes(256));
}

TEST(PlainRanges, TouchAndMove) {
  const std::vector<TextRange> ranges{{2, 4}, {4, 4}, {6, 9}};
  EXPECT_FALSE(touches(ranges, 0, 2));
  EXPECT_TRUE(touches(ranges, 3, 4));
  EXPECT_FALSE(touches(ranges, 4, 6));
  EXPECT_TRUE(touches(ranges, 0, 20));
  EXPECT_EQ(ranges_within(ranges, 3, 7), (std::vector<TextRange>{{0, 1}, {1, 1}, {3, 4}}));
  EXPECT_EQ(ranges_in_valid("a\xff"
                            "bc",
                            std::vector<TextRange>{{0, 1}, {1, 3}, {3, 4}}),
            (std::vector<TextRange>{{0, 1}, {1, 5}, {5, 6}}));
}

}  // namespace
}  // namespace switchyard
