// Pairs of answers as tokens, masks and rows (tests/golden/lora), and lines that are refused.
#include "data/preference_pairs.h"

#include <gtest/gtest.h>

#include "config/test_support.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"

namespace switchyard {
namespace {

// A case's tokenizer and template.
class PairCase {
 public:
  explicit PairCase(const std::string& name, const std::string& chat_template = "chat_template.jinja")
      : folder_(std::string(kSourceFolder) + "/tests/golden/lora/" + name + "/"),
        tokenizer_(make_tokenizer("huggingface", folder_)),
        chat_(*chat::find_template(folder_, folder_ + chat_template), chat::ChatTemplate::Options{}) {
    ConversationOptions options;
    options.columns = {"prompt", "completion"};
    options.bos = tokenizer_->encode_with_special("<|begin|>").at(0);
    options.eos = tokenizer_->eos();
    encoder_ = std::make_unique<ConversationEncoder>(*tokenizer_, &chat_, options);
  }
  std::vector<PreferencePair> read() {
    ThreadPool pool(2);
    return read_pairs(folder_ + "data.jsonl", *encoder_, {"prompt", "chosen", "rejected"}, pool);
  }
  std::string problem_of(const std::string& line,
                         const std::vector<std::string>& columns = {"prompt", "chosen", "rejected"}) {
    try {
      encode_pair(nlohmann::ordered_json::parse(line), "file:7", *encoder_, columns);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
  nlohmann::json expected() const { return read_json_file(folder_ + "expected.json"); }

 private:
  std::string folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  chat::ChatTemplate chat_;
  std::unique_ptr<ConversationEncoder> encoder_;
};

class PairGoldens : public ::testing::TestWithParam<const char*> {};

TEST_P(PairGoldens, TextsTokensAndMasks) {
  for (const char* chat_template : {"chat_template.jinja", "chat_template_plain.jinja"}) {
    PairCase the_case(GetParam(), chat_template);
    const nlohmann::json pairs = the_case.expected().at("pairs");
    const std::vector<PreferencePair> got = the_case.read();
    ASSERT_EQ(got.size(), pairs.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      for (const auto& [name, side] : {std::pair("chosen", &got[i].chosen), {"rejected", &got[i].rejected}}) {
        const nlohmann::json& want = pairs[i].at(name);
        EXPECT_EQ(side->text, want.at("text").get<std::string>()) << i << name;
        EXPECT_EQ(nlohmann::json(side->tokens), want.at("tokens")) << i << name;
        EXPECT_EQ(nlohmann::json(side->mask), want.at("mask")) << i << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, PairGoldens, ::testing::Values("dpo-dense", "dpo-moe", "dpo-text"));

TEST(PreferencePairs, LinesThatAreNoPairsAreRefused) {
  PairCase the_case("dpo-text");
  EXPECT_MENTIONS(the_case.problem_of("3"), "file:7", "expected an object");
  EXPECT_MENTIONS(the_case.problem_of(R"({"prompt": "a", "chosen": "b"})"), "file:7", "rejected", "got none");
  EXPECT_MENTIONS(the_case.problem_of(R"({"prompt": "a", "chosen": 1, "rejected": "c"})"), "chosen", "got");
  EXPECT_MENTIONS(the_case.problem_of(R"({"chosen": "b", "rejected": "c"})"), "expected a prompt");
  EXPECT_MENTIONS(
      the_case.problem_of(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", {"chosen", "rejected"}),
      "expected a prompt");
  const std::string asks = R"({"role": "user", "content": "a"})",
                    says = R"({"role": "assistant", "content": "b"})";
  EXPECT_MENTIONS(the_case.problem_of(R"({"chosen": [)" + says + R"(], "rejected": [)" + asks + "]}"),
                  "begin alike");
  EXPECT_MENTIONS(
      the_case.problem_of(R"({"chosen": [)" + asks + R"(], "rejected": [)" + asks + "," + says + "]}"),
      "begin alike");
  EXPECT_MENTIONS(the_case.problem_of(R"({"prompt": "a", "chosen": [)" + says + R"(], "rejected": "c"})"),
                  "file:7: prompt and chosen", "two texts");
  EXPECT_THROW(check_pair_columns({"prompt", "chosen"}), Error);
  EXPECT_THROW(check_pair_columns({"chosen", "rejected", "score"}), Error);
}

Conversation side_with(std::int64_t prompt, std::int64_t answer) {
  Conversation side;
  for (std::int64_t i = 0; i < prompt + answer; ++i) {
    side.tokens.push_back(static_cast<std::int32_t>(i));
    side.mask.push_back(i < prompt ? 0 : 1);
  }
  return side;
}

TEST(PreferencePairs, LongOnesAreCutToTheirRow) {
  const auto kept = pair_within({side_with(3, 4), side_with(3, 6)}, 16, {});
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->rejected.tokens.size(), 9);
  // Half of 16 for each side, of which a quarter of the row for the prompt: its end.
  const auto cut = pair_within({side_with(6, 2), side_with(6, 9)}, 16, {});
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->chosen.tokens, (std::vector<std::int32_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(cut->rejected.tokens, (std::vector<std::int32_t>{2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(cut->rejected.mask, (std::vector<std::uint8_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(pair_within({side_with(6, 2), side_with(6, 2)}, 16, 1)->chosen.tokens.size(), 3);
  EXPECT_FALSE(pair_within({side_with(9, 2), side_with(9, 2)}, 16, 8));  // no answer within 8 tokens
}

TEST(PreferencePairs, BothAnswersAreDocumentsOfOneRow) {
  const std::vector<PreferencePair> pairs{{side_with(2, 2), side_with(2, 3)},
                                          {side_with(1, 2), side_with(1, 1)},
                                          {side_with(2, 4), side_with(2, 4)}};
  const PackingOptions packing{.batch = 2, .sequence = 14, .shuffle = false};
  const PairRows rows = pair_rows(pairs, "FILE", packing, {});
  EXPECT_EQ(rows.rows, (std::vector<std::vector<std::int64_t>>{{2}, {0, 1}}));
  const Batch batch = make_pairs(rows, "FILE", packing)->read(0, 2);
  const auto segments = batch.targets_segmentation.span<std::int32_t>();
  const std::vector<std::int32_t> second(segments.begin() + 14, segments.end());
  EXPECT_EQ(second, (std::vector<std::int32_t>{0, 1, 1, 0, 0, 2, 2, 2, 0, 3, 3, 0, 4, 0}));
  EXPECT_EQ(pair_rows(pairs, "FILE", {.sequence = 14, .most_documents = 3}, {}).rows.size(), 3);
}

}  // namespace
}  // namespace switchyard
