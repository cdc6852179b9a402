#include "grammar/grammar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/testing.h"

namespace switchyard::grammar {

namespace {

namespace fs = std::filesystem;

constexpr std::int32_t end_id = 300;

// Bytes, an end, a token that is never text, then tokens of several bytes: some of JSON, some random.
std::vector<std::optional<std::string>> small_vocabulary() {
  std::vector<std::optional<std::string>> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(std::string(1, static_cast<char>(byte)));
  tokens.resize(310);
  for (const char* token :
       {"{\"",          "\":",  "\",\"", "\"}",      "}]",      "[[",    "tru",   "true",     "false",
        "null",         "12",   "345",   "-1",       ".5",      "e-0",   "ab",    "cat",      "dog",
        ", ",           "name", "\"a\"", "{\"a\":1", "\\\"",    "\\u00", "日本",  "\xe6\x97", "\xa5\xe6",
        "\xf0\x9f\x91", "\xa9", "\n  ",  "\"x_",     "\"},{\"", "re",    "red\"", "2026",     "-03-",
        "05",           "AB-",  "\":\"", "\"t\"",    "a",       "ba",    "b\"",   "\"b\":",   "aba"}) {
    tokens.emplace_back(token);
  }
  std::mt19937 random(7);
  const std::string alphabet = "abcdeftrunls0123456789\"\"{}[]:,.-\\ ";
  for (int i = 0; i < 300; ++i) {
    std::string token;
    for (std::size_t length = 2 + random() % 3; token.size() < length;)
      token += alphabet[random() % alphabet.size()];
    tokens.emplace_back(std::move(token));
  }
  return tokens;
}

const std::vector<std::optional<std::string>>& tokens() {
  static const auto made = small_vocabulary();
  return made;
}

const Vocabulary& vocabulary() {
  static const std::vector<std::int32_t> ends = {end_id};
  static const Vocabulary made(tokens(), ends, {{"<call>", 301}, {"</call>", 302}});
  return made;
}

bool bit(const std::vector<std::uint32_t>& bits, std::size_t id) {
  return (bits[id / 32] >> (id % 32) & 1u) != 0;
}

std::vector<std::uint32_t> mask_of(Matcher& matcher) {
  std::vector<std::uint32_t> bits((tokens().size() + 31) / 32, ~0u);
  matcher.mask(bits);
  return bits;
}

// The mask says what accept() says, of every token.
void expect_true_mask(const Matcher& matcher, const std::string& where) {
  Matcher asked = matcher.fork();
  const auto bits = mask_of(asked);
  for (std::size_t id = 0; id < tokens().size(); ++id) {
    Matcher tried = matcher.fork();
    ASSERT_EQ(tried.accept(static_cast<std::int32_t>(id)), bit(bits, id))
        << where << ": token " << id << " " << tokens()[id].value_or("(none)");
  }
}

// Feeds a text by tokens that the masks allow (single bytes without `random`). Returns whether the
// grammar took the whole text.
bool takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text,
           std::mt19937* random = nullptr, bool check_masks = false) {
  Matcher matcher(grammar);
  for (std::size_t at = 0; at < text.size();) {
    const auto bits = mask_of(matcher);
    if (check_masks) expect_true_mask(matcher, text.substr(0, at));
    std::vector<std::int32_t> fit;
    for (std::size_t id = 0; id < tokens().size(); ++id) {
      const auto& token = tokens()[id];
      if (!token || (random == nullptr && token->size() > 1) || text.compare(at, token->size(), *token) != 0)
        continue;
      if (bit(bits, id)) fit.push_back(static_cast<std::int32_t>(id));
    }
    if (fit.empty()) return false;
    const std::int32_t id = fit[random == nullptr ? 0 : (*random)() % fit.size()];
    EXPECT_TRUE(matcher.accept(id));
    at += tokens()[static_cast<std::size_t>(id)]->size();
  }
  EXPECT_EQ(bit(mask_of(matcher), end_id), matcher.may_end());
  return matcher.may_end();
}

std::string schema_file() {
  return std::string(kSourceFolder) + "/tests/golden/chat/schemas.json";
}

std::vector<fs::path> golden_files() {
  std::vector<fs::path> files = {schema_file()};
  const fs::path shared = fs::path(kSourceFolder) / "../shared/golden/chat/schemas.json";
  if (fs::exists(shared)) files.push_back(shared);
  return files;
}

Json read(const fs::path& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

}  // namespace

class GrammarTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_built_in()) GTEST_SKIP() << "this build has no grammars";
  }
};

// Grammars hold what they need of a vocabulary, and a vocabulary its last grammars. Both go with their users.
TEST_F(GrammarTest, AVocabularyGoesWithItsLastUser) {
  const std::vector<std::int32_t> ends = {end_id};
  auto held = std::make_unique<const Vocabulary>(tokens(), ends);
  const std::weak_ptr<const Vocabulary::Impl> there = held->impl();
  auto grammar = Grammar::of_json_object(*held);
  EXPECT_EQ(Grammar::of_json_object(*held), grammar) << "it is kept";
  held.reset();
  EXPECT_FALSE(there.expired());
  grammar.reset();
  EXPECT_TRUE(there.expired());
}

TEST_F(GrammarTest, KeepsTheGoldenSchemas) {
  std::mt19937 random(11);
  for (const fs::path& file : golden_files()) {
    const Json golden = read(file);
    int accepted = 0, rejected = 0, refused = 0;
    for (const Json& one : golden.at("cases")) {
      const std::string name = one.at("name");
      SCOPED_TRACE(name);
      std::shared_ptr<const Grammar> grammar;
      try {
        grammar = Grammar::of_json_schema(vocabulary(), one.at("schema"));
      } catch (const GrammarError& error) {
        EXPECT_TRUE(one.contains("keyword")) << error.what();
        if (one.contains("keyword")) {
          EXPECT_NE(std::string(error.what()).find(one.at("keyword").get<std::string>()), std::string::npos)
              << error.what();
        }
        ++refused;
        continue;
      }
      for (const Json& text : one.at("accepted")) {
        ++accepted;
        EXPECT_TRUE(takes(grammar, text)) << text;
        for (int i = 0; i < 5; ++i) EXPECT_TRUE(takes(grammar, text, &random, i == 0)) << text;
      }
      for (const Json& text : one.at("rejected")) {
        ++rejected;
        for (int i = 0; i < 5; ++i) EXPECT_FALSE(takes(grammar, text, i == 0 ? nullptr : &random)) << text;
      }
      for (const Json& text : golden.at("not_json")) EXPECT_FALSE(takes(grammar, text)) << text;
    }
    EXPECT_GT(accepted, 0);
    EXPECT_GT(rejected, 0);
    std::printf("%s: %d accepted, %d rejected, %d schemas refused by name\n", file.c_str(), accepted,
                rejected, refused);
  }
}

namespace {

// Walks at random among what the masks allow; after `length` tokens prefers what ends a text.
std::optional<std::string> sampled(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random,
                                   int length) {
  Matcher matcher(grammar);
  std::string text;
  for (int step = 0; step < length + 3000; ++step) {
    const auto bits = mask_of(matcher);
    std::vector<std::int32_t> may;
    for (std::size_t id = 0; id < tokens().size(); ++id) {
      if (bit(bits, id)) may.push_back(static_cast<std::int32_t>(id));
    }
    if (may.empty()) {
      ADD_FAILURE() << "no token after " << text;
      return std::nullopt;
    }
    std::int32_t id = may[random() % may.size()];
    if (matcher.may_end() && (step >= length || random() % 8 == 0)) {
      id = end_id;
    } else if (step >= length) {
      for (const char* closing : {"\"", "}", "]", ":", "0", "1", "-", "e", "u", "l", "null", ","}) {
        const auto found = std::find_if(may.begin(), may.end(), [&](std::int32_t one) {
          return tokens()[static_cast<std::size_t>(one)] == closing;
        });
        if (found == may.end()) continue;
        if (random() % 10 < 9) id = *found;
        break;
      }
    }
    EXPECT_TRUE(matcher.accept(id));
    if (id == end_id) return text;
    text += *tokens()[static_cast<std::size_t>(id)];
  }
  return std::nullopt;
}

}  // namespace

// With SWITCHYARD_GRAMMAR_SAMPLES=FOLDER the texts are also written there, for bench/peers/check_schemas.py.
TEST_F(GrammarTest, RandomTextsUnderMasksAreJson) {
  const char* folder = std::getenv("SWITCHYARD_GRAMMAR_SAMPLES");
  const int texts = folder != nullptr ? 1000 : 20;
  std::mt19937 random(3);
  std::vector<fs::path> files = golden_files();
  if (folder != nullptr && std::getenv("SWITCHYARD_GRAMMAR_SCHEMAS") != nullptr)
    files = {std::getenv("SWITCHYARD_GRAMMAR_SCHEMAS")};
  const Json golden = read(files.back());
  for (const Json& one : golden.at("cases")) {
    const std::string name = one.at("name");
    SCOPED_TRACE(name);
    std::shared_ptr<const Grammar> grammar;
    try {
      grammar = Grammar::of_json_schema(vocabulary(), one.at("schema"));
    } catch (const GrammarError&) {
      continue;
    }
    Json lines = Json::array();
    int ended = 0;
    for (int i = 0; i < texts; ++i) {
      const auto text = sampled(grammar, random, static_cast<int>(random() % 25));
      if (!text) continue;
      ++ended;
      EXPECT_TRUE(Json::accept(*text)) << *text;
      lines.push_back(*text);
    }
    EXPECT_GT(ended, texts / 2) << name;
    if (folder != nullptr)
      std::ofstream(fs::path(folder) / (name + ".json"))
          << Json{{"schema", one.at("schema")}, {"texts", lines}}.dump();
  }
}

TEST_F(GrammarTest, WhiteSpaceIsBounded) {
  const auto grammar = Grammar::of_json_schema(
      vocabulary(), Json::parse(R"({"type":"object","properties":{"a":{"type":"array"}},"required":["a"]})"));
  EXPECT_TRUE(takes(grammar, R"({"a": [1, 2]})"));
  EXPECT_TRUE(takes(grammar, "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ]\n}"));
  EXPECT_TRUE(takes(grammar, "{\n" + std::string(19, ' ') + "\"a\":[]}"));
  EXPECT_FALSE(takes(grammar, "{\n" + std::string(20, ' ') + "\"a\":[]}"));
  EXPECT_FALSE(takes(grammar, "{  \"a\":[]}"));
  EXPECT_FALSE(takes(grammar, "{\"a\" :[]}"));
  EXPECT_FALSE(takes(grammar, "{\"a\":[1 ,2]}"));
}

TEST_F(GrammarTest, LengthsCountCodePoints) {
  const auto schema = [](int min, int max) {
    return Json{{"type", "string"}, {"minLength", min}, {"maxLength", max}};
  };
  const auto two = Grammar::of_json_schema(vocabulary(), schema(2, 2));
  EXPECT_TRUE(takes(two, R"("\"\n")", nullptr, true));
  EXPECT_TRUE(takes(two, R"("\ud83d\ude00\u00e9")"));
  EXPECT_FALSE(takes(two, R"("\n")"));
  EXPECT_FALSE(takes(two, R"("\ud83d\ude00")"));
  EXPECT_FALSE(takes(two, R"("\n\n\n")"));
  const auto forty =
      Grammar::of_json_schema(vocabulary(), schema(20, 40));  // longer than what is counted in places
  const auto text = [](std::size_t length) { return '"' + std::string(length, 'a') + '"'; };
  std::mt19937 random(5);
  EXPECT_FALSE(takes(forty, text(19)));
  EXPECT_TRUE(takes(forty, text(20), nullptr, true));
  EXPECT_TRUE(takes(forty, text(40), nullptr, true));
  EXPECT_FALSE(takes(forty, text(41)));
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(takes(forty, text(40), &random, i == 0));
    EXPECT_FALSE(takes(forty, text(41), &random));
  }
  EXPECT_TRUE(takes(forty, '"' + std::string(20, 'a') + R"(\n\n\n\n\n")"));
  const auto all = Grammar::of_json_schema(vocabulary(), schema(10'000, 10'000));
  EXPECT_TRUE(takes(all, text(10'000)));
  EXPECT_FALSE(takes(all, text(9'999)));
  EXPECT_FALSE(takes(all, text(10'001)));
}

TEST_F(GrammarTest, RegularExpressionsAreTheWholeText) {
  const auto grammar = Grammar::of_regex(vocabulary(), "^(ab|c)+[^x]?$");
  EXPECT_TRUE(takes(grammar, "abcab"));
  EXPECT_TRUE(takes(grammar, "c\xe6\x97\xa5"));
  EXPECT_FALSE(takes(grammar, "cxx"));
  EXPECT_FALSE(takes(grammar, ""));
  EXPECT_TRUE(takes(Grammar::of_regex(vocabulary(), "a{2,3}\\.\\d"), "aaa.7"));
  EXPECT_FALSE(takes(Grammar::of_regex(vocabulary(), "a{2,3}\\.\\d"), "aaaa.7"));
  EXPECT_THROW(Grammar::of_regex(vocabulary(), "a(?=b)"), GrammarError);
  EXPECT_THROW(Grammar::of_regex(vocabulary(), "(a"), GrammarError);
}

TEST_F(GrammarTest, ChoicesAreExact) {
  const auto grammar = Grammar::of_choice(vocabulary(), {"cat", "cats", "d\"\\\n"});
  EXPECT_TRUE(takes(grammar, "cat"));
  EXPECT_TRUE(takes(grammar, "cats"));
  EXPECT_TRUE(takes(grammar, "d\"\\\n"));
  EXPECT_FALSE(takes(grammar, "ca"));
  EXPECT_THROW(Grammar::of_choice(vocabulary(), {}), GrammarError);
}

TEST_F(GrammarTest, JsonObjects) {
  const auto grammar = Grammar::of_json_object(vocabulary());
  EXPECT_TRUE(takes(grammar, "{}", nullptr, true));
  EXPECT_TRUE(takes(grammar, R"({"a":[1,{"b":null}],"é":"\u00e9\ud83d\ude00\/"})"));
  EXPECT_FALSE(takes(grammar, R"({"a":"\ud83d"})"));
  EXPECT_FALSE(takes(grammar, "[]"));
}

TEST_F(GrammarTest, PartsComeInOrderWithSpecialTokens) {
  const Json schema = Json::parse(
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})");
  const std::vector<Part> call = {{ExactText{"<call>f\n"}}, {SchemaText{schema}}, {ExactText{"</call>"}}};
  const auto grammar = Grammar::of_parts(vocabulary(), {{Repeat{call, "\n", false}}});
  Matcher matcher(grammar);
  expect_true_mask(matcher, "at the beginning");
  EXPECT_FALSE(matcher.accept('<'));  // the marker is one token
  EXPECT_TRUE(matcher.accept(301));
  for (char c : std::string("f\n{\"a\":12}")) EXPECT_TRUE(matcher.accept(c)) << c;
  EXPECT_FALSE(matcher.may_end());
  expect_true_mask(matcher, "before the end of a call");
  EXPECT_TRUE(matcher.accept(302));
  EXPECT_TRUE(matcher.may_end());
  Matcher other = matcher.fork();
  EXPECT_TRUE(other.accept('\n'));
  EXPECT_FALSE(other.may_end());
  EXPECT_FALSE(other.accept(end_id));
  EXPECT_TRUE(other.accept(301));
  EXPECT_TRUE(matcher.accept(end_id));
  EXPECT_FALSE(matcher.accept('\n'));
  expect_true_mask(matcher, "after the end");
}

TEST_F(GrammarTest, FreeTextEndsAtItsFirstMark) {
  const auto grammar = Grammar::of_parts(vocabulary(), {{FreeText{"aab"}}, {ExactText{"!"}}});
  EXPECT_TRUE(takes(grammar, "x aaab!", nullptr, true));
  EXPECT_TRUE(takes(grammar, "\xe6\x97\xa5 ab aaaab!"));
  EXPECT_FALSE(takes(grammar, "aabaab!"));
  EXPECT_FALSE(takes(grammar, "aa!"));
  const auto marked = Grammar::of_parts(vocabulary(), {{FreeText{"<call>\n"}}, {ExactText{"!"}}});
  Matcher matcher(marked);
  for (std::int32_t id : {int('a'), 301, 301, int('b'), 301, int('\n'), int('!')})
    EXPECT_TRUE(matcher.accept(id)) << id;
  EXPECT_TRUE(matcher.may_end());
  EXPECT_FALSE(Matcher(marked).accept(302));
}

// A value between tags of a schema, with the tag </v> behind it.
std::shared_ptr<const Grammar> tagged(const std::string& schema, bool is_text = true) {
  return Grammar::of_parts(vocabulary(), {{TaggedText{Json::parse(schema), is_text, "</v>", "\n</v>\n"}}});
}

bool takes_tagged(const std::string& schema, const std::string& value, bool is_text = true) {
  return takes(tagged(schema, is_text), value + "\n</v>\n");
}

TEST_F(GrammarTest, TextsBetweenTagsKeepTheirSchemas) {
  const std::string units = R"({"type":"string","enum":["celsius","fahren heit","a</v>b"]})";
  EXPECT_TRUE(takes_tagged(units, "celsius"));
  EXPECT_TRUE(takes_tagged(units, "fahren heit"));
  for (const char* value : {"kelvin", "\"celsius\"", "celsius ", "", "a</v>b"})
    EXPECT_FALSE(takes_tagged(units, value)) << value;
  EXPECT_TRUE(takes_tagged(R"({"const":"x"})", "x"));
  EXPECT_FALSE(takes_tagged(R"({"const":"x"})", "y"));
  EXPECT_TRUE(takes_tagged(R"({"$ref":"#/$defs/u","$defs":{"u":{"enum":["m","km"]}}})", "km"));
  EXPECT_FALSE(takes_tagged(R"({"$ref":"#/$defs/u","$defs":{"u":{"enum":["m","km"]}}})", "k"));
  EXPECT_TRUE(takes_tagged(R"({"type":"string","pattern":"^[A-Z]{3}$"})", "ABC"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","pattern":"^[A-Z]{3}$"})", "ABCD"));
  EXPECT_TRUE(takes_tagged(R"({"type":"string","pattern":"b"})", "a\"b\\"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","pattern":"b"})", "a"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","pattern":"b"})", "</v>b"));
  EXPECT_TRUE(takes_tagged(R"({"type":"string","format":"date"})", "2026-03-05"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","format":"date"})", "2026-13-05"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","minLength":2})", "a"));
  EXPECT_TRUE(takes_tagged(R"({"type":"string","minLength":2})", "ab<b>c</b>\nd"));
  EXPECT_FALSE(takes_tagged(R"({"type":"string","maxLength":2})", "abc"));
  EXPECT_TRUE(takes_tagged(R"({"type":"string","maxLength":2})", "é\n"));
  EXPECT_TRUE(takes_tagged(R"({"anyOf":[{"enum":["a"]},{"type":"string","minLength":3}]})", "abc"));
  EXPECT_FALSE(takes_tagged(R"({"anyOf":[{"enum":["a"]},{"type":"string","minLength":3}]})", "ab"));
  EXPECT_TRUE(takes_tagged("{}", "any </ v> \"text\n"));
  EXPECT_FALSE(takes_tagged("{}", "</v>"));
}

TEST_F(GrammarTest, MixedValuesBetweenTags) {
  const std::string mixed = R"({"enum":["a","1",1,null,"fast",true]})";
  for (const char* value : {"a", "1", "null", "fast", "true"})
    EXPECT_TRUE(takes_tagged(mixed, value, false)) << value;
  for (const char* value : {"b", "\"a\"", "2", "false"})
    EXPECT_FALSE(takes_tagged(mixed, value, false)) << value;
  const std::string optional = R"({"anyOf":[{"type":"string"},{"type":"null"}]})";
  EXPECT_TRUE(takes_tagged(optional, "new york", false));
  EXPECT_TRUE(takes_tagged(optional, "null", false));
  const std::string bounded = R"({"anyOf":[{"type":"string"},{"type":"integer","minimum":10}]})";
  EXPECT_TRUE(takes_tagged(bounded, "ten", false));
  EXPECT_TRUE(takes_tagged(bounded, "12", false));
  EXPECT_FALSE(takes_tagged(bounded, "9", false));  // it would be read as a number
  for (const char* schema :
       {R"({"const":"a</v>"})", R"({"type":"string","pattern":"</v>"})", R"({"not":{}})"})
    EXPECT_THROW(tagged(schema), GrammarError) << schema;
}

TEST_F(GrammarTest, NullableIsNullBesideTheType) {
  const auto nullable =
      Grammar::of_json_schema(vocabulary(), Json::parse(R"({"type":"integer","nullable":true})"));
  EXPECT_TRUE(takes(nullable, "null"));
  EXPECT_TRUE(takes(nullable, "12"));
  EXPECT_FALSE(takes(nullable, "true"));
  const auto plain =
      Grammar::of_json_schema(vocabulary(), Json::parse(R"({"type":"integer","nullable":false})"));
  EXPECT_FALSE(takes(plain, "null"));
}

// The token {" reaches over the end of a marker {.
TEST_F(GrammarTest, TokensBeyondAMarker) {
  const auto grammar = Grammar::of_parts(vocabulary(), {{ExactText{"\"a\""}}});
  Matcher matcher(grammar);
  const auto id_of = [](const std::string& text) {
    return static_cast<std::int32_t>(std::find(tokens().begin(), tokens().end(), text) - tokens().begin());
  };
  const std::vector<std::int32_t> forbidden = matcher.forbidden_beyond("{", "");
  EXPECT_EQ(std::ranges::count(forbidden, id_of("{\"")), 0);
  EXPECT_EQ(std::ranges::count(forbidden, id_of("{\"a\":1")), 1);
  EXPECT_EQ(std::ranges::count(forbidden, id_of("{")), 0);
  EXPECT_EQ(std::ranges::count(matcher.forbidden_beyond("<{", ""), id_of("{\"a\":1")), 0);
  EXPECT_EQ(std::ranges::count(matcher.forbidden_beyond("<{", "x<"), id_of("{\"a\":1")), 1);
  EXPECT_FALSE(matcher.accept_text("\"b"));
  EXPECT_TRUE(matcher.accept_text("\"a"));
  EXPECT_TRUE(matcher.accept('"'));
  EXPECT_TRUE(matcher.may_end());
}

// What compiling would cost is bounded before it begins: nothing ends it.
TEST_F(GrammarTest, LongGrammarsAreRefusedAtOnce) {
  std::string regex = "word";
  std::vector<std::string> texts;
  Json names = Json::array();
  for (int i = 0; i < 40000; ++i) {
    texts.push_back("word" + std::to_string(i));
    regex += "|" + texts.back();
    names.push_back(texts.back());
  }
  EXPECT_THROW(Grammar::of_regex(vocabulary(), regex), GrammarError);
  EXPECT_THROW(Grammar::of_choice(vocabulary(), texts), GrammarError);
  EXPECT_THROW(Grammar::of_json_schema(vocabulary(), {{"enum", names}}), GrammarError);
  texts.resize(1000);
  EXPECT_NE(Grammar::of_choice(vocabulary(), texts), nullptr);
}

TEST_F(GrammarTest, EqualSchemasAreCompiledOnce) {
  const Json schema = Json::parse(R"({"type":"string","maxLength":3})");
  EXPECT_EQ(Grammar::of_json_schema(vocabulary(), schema), Grammar::of_json_schema(vocabulary(), schema));
}

TEST(WithoutGrammars, SaysSo) {
  if (is_built_in()) GTEST_SKIP() << "this build has grammars";
  try {
    Vocabulary({}, {});
    FAIL() << "no error";
  } catch (const GrammarError& error) {
    EXPECT_NE(std::string(error.what()).find("this build has no grammars"), std::string::npos);
  }
}

}  // namespace switchyard::grammar
