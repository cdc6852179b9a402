#include "serve/token_memory.h"

#include <gtest/gtest.h>

#include "serve/longest_token.h"

namespace switchyard::serve {
namespace {

// Two letters may be one token, which encoding never makes: the model may have made it.
class PairTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    for (const char c : text) {
      if (c != dropped) ids.push_back(c);
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override { return decode_all(ids); }
  std::vector<std::int32_t> encode_with_special(std::string_view text,
                                                std::span<const TextRange>) const override {
    std::vector<std::int32_t> ids = encode(text);
    for (std::int32_t& id : ids) id = id == '<' ? kMark : id;
    return ids;
  }
  std::string decode_all(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids)
      text += id == kMark ? "<" : id == kPair ? "ab" : std::string(1, static_cast<char>(id));
    return text;
  }
  std::optional<std::string> token_bytes(std::int32_t id) const override {
    if (id == kMark) return {};
    return decode_all({{id}});
  }
  std::int32_t vocab_size() const override { return 130; }
  std::optional<std::int32_t> bos() const override { return {}; }
  std::optional<std::int32_t> eos() const override { return {}; }

  static constexpr std::int32_t kMark = 128, kPair = 129;
  char dropped = '\0';
};

TEST(TokenMemory, DomainsShareNothing) {
  const PairTokenizer tokenizer;
  TokenMemory memory(tokenizer);
  const std::vector<std::int32_t> prompt{PairTokenizer::kMark, 'x', PairTokenizer::kMark},
      made{PairTokenizer::kPair};
  memory.keep({0}, prompt, made);
  memory.keep({0, "salt"}, prompt, std::vector<std::int32_t>{'a'});
  const std::vector<std::int32_t> anew = tokenizer.encode_with_special("<x<ab<", {});
  std::vector<std::int32_t> known = prompt;
  known.insert(known.end(), {PairTokenizer::kPair, PairTokenizer::kMark});
  EXPECT_EQ(memory.encode({0}, "<x<ab<", {}), known);
  EXPECT_EQ(memory.encode({1}, "<x<ab<", {}), anew);
  EXPECT_EQ(memory.encode({0, "salt"}, "<x<ab<", {}), anew);
  EXPECT_EQ(memory.encode({}, "<x<ab<", {}), anew);
}

TEST(LongestToken, IsUnknownWhereCharactersAreDropped) {
  PairTokenizer tokenizer;
  EXPECT_EQ(longest_token_bytes(tokenizer, 130), 8u);  // two bytes, which may have been composed
  tokenizer.dropped = ' ';
  EXPECT_EQ(longest_token_bytes(tokenizer, 130), 0u);
}

}  // namespace
}  // namespace switchyard::serve
