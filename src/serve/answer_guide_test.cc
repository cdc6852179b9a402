// Grammars that begin within a token: behind the marker of calls, or behind the end of reasoning.
#include "texts/answer_guide.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "chat/call_form.h"
#include "serve/protocol/call_grammar.h"
#include "serve/texts.h"

namespace switchyard::serve {
namespace {

using chat::Json;

constexpr std::int32_t kEnd = 256, kLine = 257, kBrace = 258, kOther = 259, kReasoned = 260;

// All bytes, an end, and tokens that reach over the end of a marker.
const std::vector<std::optional<std::string>>& tokens() {
  static const auto made = [] {
    std::vector<std::optional<std::string>> list;
    for (int byte = 0; byte < 256; ++byte) list.emplace_back(std::string(1, static_cast<char>(byte)));
    list.emplace_back();
    for (const char* text : {">\n", ">{\"", ">{x", "think>\n\n{"}) list.emplace_back(text);
    return list;
  }();
  return made;
}

class GuideTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar::is_built_in()) GTEST_SKIP() << "this build has no grammars";
    vocabulary_.emplace(tokens(), std::vector<std::int32_t>{kEnd});
    auto form = std::make_shared<AnswerForm>();
    form->format = chat::Format::hermes;
    form->tools =
        Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
      "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}}}])");
    form_ = form.get();
    request_.answer = std::move(form);
  }

  bool allows(AnswerGuide& guide, std::int32_t token) const {
    const std::vector<std::int32_t> forbidden = guide.forbidden();
    std::vector<std::uint32_t> bits;
    guide.mask(tokens().size(), forbidden, bits);
    return (bits[static_cast<std::size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }

  void add(AnswerGuide& guide, std::int32_t token) {
    EXPECT_TRUE(allows(guide, token)) << *tokens()[static_cast<std::size_t>(token)] << " after " << text_;
    Piece piece;
    guide.add(token, *tokens()[static_cast<std::size_t>(token)], piece);
    text_ += *tokens()[static_cast<std::size_t>(token)];
    for (const chat::Delta& delta : piece.deltas)
      (delta.kind == chat::Delta::Kind::arguments ? arguments_ : content_) += delta.text;
  }
  void add(AnswerGuide& guide, const std::string& text) {
    for (const char c : text) add(guide, static_cast<std::int32_t>(static_cast<unsigned char>(c)));
  }

  std::optional<grammar::Vocabulary> vocabulary_;
  const AnswerForm* form_ = nullptr;
  TextRequest request_;
  std::string text_, content_, arguments_;
};

TEST_F(GuideTest, TheMarkersLastTokenMayCarryMore) {
  const chat::CallForm calls = chat::call_form(chat::Format::hermes, form_->tools);
  request_.grammar = grammar::Grammar::of_parts(*vocabulary_, call_parts(calls, false, true));
  request_.grammar_after = calls.marker;
  for (const std::int32_t over : {kLine, kBrace}) {
    text_ = content_ = arguments_ = "";
    AnswerGuide guide(request_);
    add(guide, "x <tool_call");
    EXPECT_FALSE(allows(guide, kOther));  // no call goes on so
    add(guide, over);
    EXPECT_TRUE(guide.is_masking());
    EXPECT_FALSE(allows(guide, 'x'));
    add(guide, over == kLine ? "{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>"
                             : "name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>");
    EXPECT_EQ(guide.calls(), 1u);
    EXPECT_EQ(arguments_, "{\"a\":1}");
    EXPECT_EQ(content_, "x");
  }
}

TEST_F(GuideTest, ReasoningMayEndWithinAToken) {
  auto form = std::make_shared<AnswerForm>(*form_);
  form->tools = nullptr;
  form->opens_reasoning = true;
  request_.answer = std::move(form);
  request_.grammar = grammar::Grammar::of_json_object(*vocabulary_);
  request_.grammar_after = "</think>";
  request_.grammar_after_reasoning = true;
  AnswerGuide guide(request_);
  add(guide, "hm</");
  add(guide, kReasoned);
  EXPECT_TRUE(guide.is_masking());
  EXPECT_FALSE(allows(guide, '{'));
  add(guide, "\"a\":1}");
  EXPECT_TRUE(guide.may_end());
}

}  // namespace
}  // namespace switchyard::serve
