// Classes of characters, patterns and normal forms against the library tokenizers (tests/golden/tokenizer/unicode.json),
// with characters that are newer than the installed PCRE2 and utf8proc may know.
#include "tokenizer/unicode.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "tokenizer/code_set.h"
#include "tokenizer/normalizers.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pre_tokenizers.h"
#include "tokenizer/regex.h"

namespace switchyard {
namespace {

using nlohmann::json;

json golden() {
  return read_json_file(std::string(kSourceFolder) + "/tests/golden/tokenizer/unicode.json");
}

TEST(Pattern, MatchesAsTheLibraryDoes) {
  const json cases = golden().at("patterns");
  const auto text = cases.at("text").get<std::string>();
  for (const json& row : cases.at("matches")) {
    json found = json::array();
    for (const auto& [begin, end] : Regex(row[0].get<std::string>(), "test").matches(text)) {
      if (begin < end) found.push_back(text.substr(begin, end - begin));
    }
    EXPECT_EQ(found, row[1]) << row[0];
  }
}

TEST(Pattern, NamesWhatIsNotUnderstood) {
  const std::vector<std::pair<const char*, const char*>> patterns = {
      {R"(a\X)", "the escape \\X"},       {R"([\q])", "the escape \\q"},       {R"(\p{Klingon})", "\\p{Klingon}"},
      {R"([[:odd:]])", "[:odd:]"},        {R"((?~ab))", "(?~"},                {R"((?s:a))", "(?s"},
      {R"((?(1)a))", "(?("},              {R"(a{3,1})", "a quantifier"},       {R"(*a)", "nothing before it"},
      {R"([a-\d])", "ends with a class"}, {R"([z-a])", "before its beginning"}, {R"([a)", "a [ without its ]"},
      {R"((a)", "a ( without its )"},     {R"(a))", "a ) without its ("},      {R"(\xe9)", "expected \\x{...}"},
      {R"((?i:İ))", "without regard"},    {R"((?i:[ß]))", "without regard"},   {R"((?i:(a)\1))", "a reference"}};
  for (const auto& [pattern, message] : patterns) {
    try {
      pcre2_pattern(pattern, "test", Texts::all);
      ADD_FAILURE() << pattern << " is accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  }
}

TEST(CodeSet, Algebra) {
  const CodeSet letters('a', 'f'), others('d', 'z');
  EXPECT_EQ((letters & others).ranges().size(), 1u);
  EXPECT_TRUE((letters & others).contains('d'));
  EXPECT_FALSE((letters & others).contains('c'));
  EXPECT_EQ((letters | others).ranges().size(), 1u);
  EXPECT_FALSE((letters - others).contains('d'));
  EXPECT_TRUE(letters.complement().complement().contains('a'));
  EXPECT_FALSE(letters.complement().contains(0xd800));  // no character
  EXPECT_TRUE(CodeSet('k', 'k').folded().contains(0x212a));
  EXPECT_TRUE(CodeSet(0x1c89, 0x1c89).folded().contains(0x1c8a));  // of Unicode 16
  EXPECT_TRUE(CodeSet(0, 0x10ffff).complement().empty());
  EXPECT_FALSE(class_named("klingon"));
}

// A class in the words of PCRE2 has exactly its characters.
TEST(EngineClasses, HaveExactlyTheSet) {
  for (const char* name : {"L", "Lu", "M", "S", "Han", "Alphabetic", "Cn", "Space"}) {
    const CodeSet set = *class_named(name);
    const Regex regex(fmt::format("\\p{{{}}}+", name), "test");
    for (const std::uint32_t page : {0x0u, 0x300u, 0xe00u, 0x1c00u, 0x2400u, 0x3000u, 0xa700u, 0x10d00u, 0x16d00u, 0x1fa00u,
                                     0x31300u, 0x32300u}) {
      std::string text, expected, got;
      for (std::uint32_t c = page; c < page + 0x100; ++c) {
        text += utf8_of(c);
        if (set.contains(c)) expected += utf8_of(c);
      }
      for (const auto& [begin, end] : regex.matches(text)) got += text.substr(begin, end - begin);
      EXPECT_EQ(got, expected) << name << " from " << page;
    }
  }
}

// Texts of characters that all agree on are matched by PCRE2's own classes, others by exact ones, to the same end.
TEST(EngineClasses, AreShortWhereNothingIsDisputed) {
  EXPECT_EQ(pcre2_pattern(R"([^\s\p{L}\p{N}]+|\p{L}|\s+(?!\S))", "test", Texts::undisputed),
            R"([^\s\p{L}\p{N}]+|\p{L}|\s+(?!\S))");
  EXPECT_FALSE(has_disputed("plain caf\u00e9 \u4e2d\u6587 \U0001f642 \u0600"));
  EXPECT_TRUE(has_disputed("a long text of many letters, and \u180e in it"));
  for (const char* pattern : {R"(\s)", R"([^\s])", R"([\p{L}&&[^a]])", R"((?i:[k\p{Lu}]))", R"(\p{P})", R"(\p{Cn})"}) {
    const Regex regex(pattern, "test");
    for (std::uint32_t page = 0; page < 0x20000; page += 0x100) {
      if (page >= 0xd800 && page < 0xe000) continue;
      std::string text;
      for (std::uint32_t c = page; c < page + 0x100; ++c) text += has_disputed(utf8_of(c)) ? "" : utf8_of(c);
      // A disputed character in front makes the exact classes match.
      const std::string front = "\u180e";
      const auto found = regex.matches(text);
      auto exact = regex.matches(front + text);
      if (!exact.empty() && exact[0].first == 0) exact.erase(exact.begin());
      ASSERT_EQ(exact.size(), found.size()) << pattern << " from " << page;
      for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(exact[i].first, found[i].first + front.size()) << pattern;
    }
  }
}

TEST(Normalizers, OfNewCharacters) {
  const json cases = golden().at("normalizers");
  for (const json& row : cases.at("normal"))
    EXPECT_EQ(make_normalizer(JsonReader(row[0], "test"))(cases.at("text")), row[1].get<std::string>()) << row[0];
}

TEST(PreTokenizers, OfNewCharacters) {
  const json cases = golden().at("pre_tokenizers");
  for (const json& row : cases.at("pieces")) {
    json pieces = json::array();
    for (const TextPiece& piece : make_pre_tokenizer(JsonReader(row[0], "test")).split({{cases.at("text"), true}}))
      pieces.push_back(piece.text);
    EXPECT_EQ(pieces, row[1]) << row[0];
  }
}

// Where a pattern matches nothing, Replace puts its content and Split cuts (expected: what the library makes of it).
TEST(EmptyMatches, AreReplacedAndCut) {
  const auto replaced = [](const char* pattern, const char* text) {
    const json entry = {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", "-"}};
    return make_normalizer(JsonReader(entry, "test"))(text);
  };
  EXPECT_EQ(replaced("a*", "baab"), "-b-b-");
  EXPECT_EQ(replaced("a*", ""), "");
  EXPECT_EQ(replaced("^", "éB\nc"), "-éB\n-c");
  EXPECT_EQ(replaced("$", "éB\nc"), "éB-\nc-");
  EXPECT_EQ(replaced("(?=[A-Z])", "éB\nc"), "é-B\nc");
  const auto pieces = [](const char* pattern, const char* behavior, bool invert) {
    const json entry = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}, {"invert", invert}};
    std::string joined;
    for (const TextPiece& piece : make_pre_tokenizer(JsonReader(entry, "test")).split({{"fooBarB é", true}}))
      joined += (joined.empty() ? "" : "|") + piece.text;
    return joined;
  };
  for (const char* behavior : {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"})
    EXPECT_EQ(pieces("(?=[A-Z])", behavior, false), "foo|Bar|B é") << behavior;
  EXPECT_EQ(pieces("(?=[A-Z])", "Removed", true), "");
  EXPECT_EQ(pieces("o*", "Isolated", false), "f|oo|B|a|r|B| |é");
  EXPECT_EQ(pieces("o*", "Removed", false), "f|B|a|r|B| |é");
  EXPECT_EQ(pieces("o*", "Removed", true), "oo");
  EXPECT_EQ(pieces("o*", "MergedWithPrevious", false), "foo|B|a|r|B| |é");
  EXPECT_EQ(pieces("o*", "MergedWithPrevious", true), "f|ooB|a|r|B| |é");
  EXPECT_EQ(pieces("o*", "MergedWithNext", false), "f|ooB|a|r|B| |é");
  EXPECT_EQ(pieces("o*", "MergedWithNext", true), "foo|B|a|r|B| |é");
}

}  // namespace
}  // namespace switchyard
