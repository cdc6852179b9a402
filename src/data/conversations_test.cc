// Compares conversations' tokens, masks and rows with those of transformers and TRL, and refuses bad files
// (tests/golden/lora has both).
#include "data/conversations.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>

#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "data/best_fit.h"
#include "data/test_support.h"

namespace switchyard {
namespace {

using namespace std::string_literals;

const std::string kLora = std::string(kSourceFolder) + "/tests/golden/lora/";

bool names_all(const std::string& problem, const std::vector<std::string>& words) {
  return std::ranges::all_of(words,
                             [&](const auto& word) { return problem.find(word) != std::string::npos; });
}

// A case's tokenizer and template.
class SftCase {
 public:
  explicit SftCase(const std::string& name, const std::string& chat_template = "chat_template.jinja")
      : folder_(kLora + name + "/"), tokenizer_(make_tokenizer("huggingface", folder_)) {
    chat_ = std::make_unique<chat::ChatTemplate>(*chat::find_template(folder_, folder_ + chat_template),
                                                 chat::ChatTemplate::Options{});
    options.columns.assign(conversation_columns().begin(), conversation_columns().end());
    options.bos = tokenizer_->encode_with_special("<|begin|>").at(0);
    options.eos = tokenizer_->eos();
  }
  std::vector<Conversation> read(const std::string& path) {
    const ConversationEncoder encoder(*tokenizer_, chat_.get(), options);
    return read_conversations(path, encoder, pool_);
  }
  std::vector<Conversation> read() { return read(folder_ + "data.jsonl"); }
  nlohmann::json expected() const { return read_json_file(folder_ + "expected.json"); }

  ConversationOptions options;

 private:
  std::string folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<chat::ChatTemplate> chat_;
  ThreadPool pool_{2};
};

class SftGoldens : public ::testing::TestWithParam<const char*> {};

TEST_P(SftGoldens, TextsTokensMasksAndRows) {
  for (const char* chat_template : {"chat_template.jinja", "chat_template_plain.jinja"}) {
    if (GetParam() == std::string("sft-thinking") && chat_template != std::string("chat_template.jinja"))
      continue;
    SftCase the_case(GetParam(), chat_template);
    const nlohmann::json expected = the_case.expected();
    const std::int64_t sequence = expected.at("max_target_length");
    const std::vector<Conversation> all = the_case.read();
    ASSERT_EQ(all.size(), expected.at("documents").size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const nlohmann::json& document = expected.at("documents")[i];
      EXPECT_EQ(all[i].text, document.at("text").get<std::string>()) << i;
      EXPECT_EQ(nlohmann::json(all[i].tokens), document.at("tokens")) << i;
      EXPECT_EQ(nlohmann::json(all[i].mask), document.at("mask")) << i;
      EXPECT_EQ(kept_inputs(all[i], sequence), document.at("kept")) << i;
      EXPECT_EQ(is_dropped(all[i], sequence), document.at("dropped")) << i;
    }
    const auto rows = conversation_rows(all, {.sequence = sequence});
    EXPECT_EQ(nlohmann::json(rows), expected.at("packed"));
  }
}

// The test derives each row of a batch from the documents.
TEST_P(SftGoldens, Batches) {
  SftCase the_case(GetParam());
  const nlohmann::json expected = the_case.expected();
  const std::int64_t sequence = expected.at("max_target_length");
  std::string report;
  const PackingOptions packing{.sequence = sequence, .shuffle = false};
  const SplitData data = make_conversations(the_case.read(), "data.jsonl", packing, 0, report);
  ASSERT_EQ(data.train->rows(), static_cast<std::int64_t>(expected.at("packed").size()));
  const Batch batch = data.train->read(0, data.train->rows());
  std::int64_t row = 0;
  for (const nlohmann::json& lines : expected.at("packed")) {
    std::int64_t at = row++ * sequence;
    std::int32_t segment = 0;
    for (const std::size_t line : lines) {
      const nlohmann::json& document = expected.at("documents")[line];
      const std::vector<std::int32_t> tokens = document.at("tokens"), mask = document.at("mask");
      ++segment;
      for (std::size_t i = 0; i < std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(sequence));
           ++i, ++at) {
        const bool target = i + 1 < tokens.size() && mask[i + 1] != 0;
        EXPECT_EQ(batch.inputs.data<std::int32_t>()[at], tokens[i]);
        EXPECT_EQ(batch.inputs_position.data<std::int32_t>()[at], static_cast<std::int32_t>(i));
        EXPECT_EQ(batch.inputs_segmentation.data<std::int32_t>()[at], segment);
        EXPECT_EQ(batch.targets.data<std::int32_t>()[at], target ? tokens[i + 1] : 0);
        EXPECT_EQ(batch.targets_segmentation.data<std::int32_t>()[at], target ? segment : 0);
      }
    }
    for (; at < row * sequence; ++at) EXPECT_EQ(batch.inputs_segmentation.data<std::int32_t>()[at], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SftGoldens,
                         ::testing::Values("sft-chat", "sft-moe", "sft-text", "sft-tools", "sft-thinking"));

TEST(Conversations, LastAnswerAlone) {
  for (const char* chat_template : {"chat_template.jinja", "chat_template_plain.jinja"}) {
    SftCase thinking("sft-thinking", chat_template);
    thinking.options.last_answer_only = true;
    const std::vector<Conversation> all = thinking.read();
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(nlohmann::json(all[i].mask), thinking.expected().at("documents")[i].at("mask_last_answer"))
          << i;
  }
}

TEST(Conversations, EveryTokenOrMessagesAsText) {
  SftCase the_case("sft-chat");
  EXPECT_EQ(the_case.read()[10].special_messages, 2);
  EXPECT_EQ(the_case.read()[9].special_messages, 0);
  const std::size_t tokens = the_case.read()[10].tokens.size();
  the_case.options.trust_messages = false;
  EXPECT_GT(the_case.read()[10].tokens.size(), tokens);
  EXPECT_EQ(the_case.read()[10].special_messages, 0);
  the_case.options.completion_only = false;
  EXPECT_PRED2(names_all, message_of([&] { the_case.read(); }),
               (std::vector<std::string>{"data.jsonl:9", "weight", "sft_train_on_completion_only"}));
}

TEST(Conversations, BadFilesAreRefusedWithTheirLine) {
  for (const nlohmann::json& bad : read_json_file(kLora + "bad/bad.json")) {
    const auto name = bad.at("name").get<std::string>();
    SftCase the_case(bad.at("base"), bad.value("template", "chat_template.jinja"));
    const std::string path = kLora + "bad/data/" + name + ".jsonl";
    std::string report;
    const std::string problem =
        message_of([&] { make_conversations(the_case.read(path), path, {.sequence = 64}, 0, report); });
    EXPECT_EQ(std::count(problem.begin(), problem.end(), '\n'), 0) << problem;
    for (const auto& word : bad.at("says"))
      EXPECT_PRED2(names_all, problem, (std::vector<std::string>{word.get<std::string>()})) << name;
  }
}

class ConversationFiles : public TokenTest {
 protected:
  std::string problem_of(const std::string& line) {
    SftCase the_case("sft-chat");
    const std::string path = write("line.jsonl", line + "\n");
    return message_of([&] { the_case.read(path); });
  }
};

TEST_F(ConversationFiles, OtherFormsOfFilesAndColumns) {
  SftCase the_case("sft-chat");
  const std::string turns =
      R"([{"role":"user","content":"a","name":null},{"role":"assistant","content":[{"type":"text","text":"b"}]}])";
  const std::string array = write("array.json", R"([{"messages":)" + turns + R"(,"tools":null}])");
  const std::string lines = write("lines.jsonl", "\xef\xbb\xbf{\"messages\":" + turns + "}\n\n");
  EXPECT_EQ(the_case.read(array)[0].tokens, the_case.read(lines)[0].tokens);
  EXPECT_EQ(the_case.read(array + ":" + lines).size(), 2u);
  const std::string asked = write("asked.jsonl", R"({"question":"a","answer":"b"})");
  const std::string given = write("given.jsonl", R"({"prompt":"a","completion":"b"})");
  EXPECT_EQ(the_case.read(asked)[0].tokens, the_case.read(given)[0].tokens);
  const std::string text = write("text.jsonl", R"({"text":"a wagon"})");
  EXPECT_PRED2(names_all, message_of([&] { the_case.read(text); }),
               (std::vector<std::string>{"text.jsonl:1", "train_data_columns"}));
  the_case.options.columns = {"text"};
  const Conversation whole = the_case.read(text)[0];
  EXPECT_EQ(whole.text, "<|begin|>a wagon<|end|>");
  EXPECT_EQ(std::count(whole.mask.begin() + 1, whole.mask.end(), 1), std::ssize(whole.tokens) - 1);
  the_case.options.columns = {"dialog"};
  EXPECT_PRED2(names_all, message_of([&] { the_case.read(text); }),
               (std::vector<std::string>{"train_data_columns", "dialog"}));
}

TEST_F(ConversationFiles, WhatIsRefused) {
  EXPECT_PRED2(names_all, problem_of(R"({"prompt":"a","completion":[{"role":"assistant","content":"b"}]})"),
               (std::vector<std::string>{"prompt", "completion"}));
  EXPECT_PRED2(names_all, problem_of(R"({"conversations":[{"from":"cat","value":"b"}]})"),
               (std::vector<std::string>{"conversations[0].from", "cat"}));
  EXPECT_PRED2(names_all, problem_of(R"([1])"), (std::vector<std::string>{"line.jsonl:1", "object"}));
  EXPECT_PRED2(names_all, problem_of(R"({"prompt":1,"completion":"b"})"),
               (std::vector<std::string>{"prompt", "text"}));
  SftCase the_case("sft-chat");
  EXPECT_PRED2(names_all, message_of([&] { the_case.read(write("notes.txt", "hello")); }),
               (std::vector<std::string>{"notes.txt", "jsonl"}));
  EXPECT_PRED2(names_all, message_of([&] { the_case.read(write("rows.parquet", "PAR1\0\0"s)); }),
               (std::vector<std::string>{"Parquet", "to_json"}));
}

// Equal lines are on the same side, and the share is about the one that is asked for.
TEST_F(ConversationFiles, HoldsOutAShareOfTheLines) {
  SftCase the_case("sft-chat");
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += fmt::format(R"({{"prompt":"a{}","completion":"b"}})"
                         "\n",
                         i % 200);
  const std::string path = write("many.jsonl", lines);
  std::string report;
  const PackingOptions packing{.sequence = 64, .pack = false};
  const SplitData data = make_conversations(the_case.read(path), path, packing, 0.2, report);
  EXPECT_EQ(data.train->rows() + data.eval->rows(), 400);
  EXPECT_EQ(data.eval->rows() % 2, 0);
  EXPECT_GT(data.eval->rows(), 40);
  EXPECT_LT(data.eval->rows(), 120);
  EXPECT_PRED2(names_all, report,
               (std::vector<std::string>{fmt::format("{} conversations", data.train->rows())}));
  EXPECT_PRED2(names_all, message_of([&] {
                 make_conversations(the_case.read(path), path, {.batch = 500, .sequence = 64, .pack = false},
                                    0, report);
               }),
               (std::vector<std::string>{"many.jsonl", "400 rows", "500"}));
}

// The rule in its plainest words: look through all rows for the one with the least room.
TEST(BestFit, IsThatOfAllRows) {
  std::mt19937 random(5);
  for (int round = 0; round < rounds(40); ++round) {
    const std::int64_t room = 1 + draw(random) % 30, most = round % 3 == 0 ? 2 : -1;
    std::vector<std::int64_t> lengths(draw(random) % 60);
    for (std::int64_t& length : lengths) length = 1 + draw(random) % static_cast<std::uint32_t>(room);
    std::vector<std::size_t> order(lengths.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t d) { return lengths[d]; });
    struct Row {
      std::vector<std::int64_t> documents;
      std::int64_t left;
      std::size_t since;
    };
    std::vector<Row> rows;
    for (std::size_t turn = 0; turn < order.size(); ++turn) {
      const std::int64_t length = lengths[order[turn]];
      Row* best = nullptr;
      for (Row& row : rows) {
        if (row.left < length || std::ssize(row.documents) == most) continue;
        if (best == nullptr || std::pair(row.left, row.since) < std::pair(best->left, best->since))
          best = &row;
      }
      if (best == nullptr) best = &rows.emplace_back(Row{{}, room, turn});
      best->documents.push_back(static_cast<std::int64_t>(order[turn]));
      best->left -= length;
      best->since = turn;
    }
    std::vector<std::vector<std::int64_t>> plain;
    for (const Row& row : rows) plain.push_back(row.documents);
    EXPECT_EQ(best_fit(lengths, room, most), plain);
  }
}

}  // namespace
}  // namespace switchyard
