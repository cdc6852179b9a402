#include "commands/sampling_words.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "core/error.h"

namespace switchyard {
namespace {

using CommandLine = std::vector<std::string>;

std::string problem_of_words(const std::string& command, const CommandLine& settings) {
  try {
    take_sampling_words(command, settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SamplingWordsTest, TakesWordsOutOfTheSettings) {
  const SamplingWords words = take_sampling_words(
      "generate", CommandLine{"FOLDER", "temperature=0.7", "top_p=0.9", "top_k=40", "min_p=0.05",
                              "max_tokens=1_000", "seed=-7", "presence_penalty=0.5", "frequency_penalty=-0.5",
                              "repetition_penalty=1.1", "prompt=temperature=1", "stop=[\"a\", \"\\n\"]"});
  EXPECT_EQ(words.settings, (CommandLine{"FOLDER", "prompt=temperature=1"}));
  EXPECT_EQ(words.fields,
            nlohmann::json::parse(R"({"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
      "max_tokens": 1000, "seed": -7, "presence_penalty": 0.5, "frequency_penalty": -0.5,
      "repetition_penalty": 1.1, "stop": ["a", "\n"]})"));
  EXPECT_EQ(take_sampling_words("generate", CommandLine{"stop=5"}).fields["stop"], nlohmann::json({"5"}));
  EXPECT_EQ(take_sampling_words("generate", CommandLine{"stop=\"\\n\""}).fields["stop"],
            nlohmann::json({"\n"}));
}

TEST(SamplingWordsTest, AWordBecomesTheKeyOfAnExplicitStrategy) {
  const CommandLine topk{"decode_sampling_strategy=topk", "top_k=3", "temperature=0.5"};
  const SamplingWords words = take_sampling_words("generate", topk);
  EXPECT_TRUE(words.fields.empty());
  EXPECT_EQ(words.settings, (CommandLine{"decode_sampling_strategy=topk", "decode_sampling_temperature=0.5",
                                         "decode_sampling_top_k=3"}));
  EXPECT_NE(problem_of_words("generate", {"decode_sampling_strategy=topk", "top_p=0.5"})
                .find("top_p=0.5: decode_sampling_strategy=topk would pass over it"),
            std::string::npos);
  EXPECT_NE(problem_of_words("chat", {"decode_sampling_strategy=greedy", "temperature=0.5"}), "");
  EXPECT_EQ(problem_of_words("chat", {"decode_sampling_strategy=greedy", "temperature=0"}), "");
  EXPECT_NE(problem_of_words("serve", {"decode_sampling_strategy=greedy", "min_p=0.5"}), "");
  ASSERT_EQ(::setenv("M_DECODE_SAMPLING_STRATEGY", "weighted", 1), 0);
  EXPECT_NE(problem_of_words("generate", {"top_k=3"}), "");
  ASSERT_EQ(::unsetenv("M_DECODE_SAMPLING_STRATEGY"), 0);
}

TEST(SamplingWordsTest, AKeyOfTheSameMeaningAgreesWithTheWord) {
  EXPECT_NE(problem_of_words("generate", {"temperature=0.7", "decode_sampling_temperature=0.5"}), "");
  EXPECT_EQ(problem_of_words("generate", {"temperature=0.5", "decode_sampling_temperature=0.50"}), "");
  EXPECT_NE(problem_of_words("serve", {"decode_presence_penalty=1", "presence_penalty=0.5"}), "");
  const SamplingWords words =
      take_sampling_words("generate", CommandLine{"top_p=0.9", "decode_sampling_temperature=0.5"});
  EXPECT_EQ(words.fields, (nlohmann::json{{"top_p", 0.9}, {"temperature", 0.5}}));
  const CommandLine keys{"decode_sampling_top_k=3"};
  EXPECT_TRUE(take_sampling_words("generate", keys).fields.empty());  // greedy, as ever
  EXPECT_EQ(take_sampling_words("chat", keys).fields, (nlohmann::json{{"top_k", 3}}));
}

TEST(SamplingWordsTest, WrongValuesAreNamed) {
  struct Case {
    std::string setting, expected;
  };
  const std::vector<Case> cases{{"temperature=warm", "a number of 0 to 100, got warm"},
                                {"temperature=", "a number of 0 to 100, got nothing"},
                                {"temperature=-1", "a number of 0 to 100, got -1"},
                                {"top_p=1.5", "a number of 0 to 1, got 1.5"},
                                {"top_k=2.5", "a whole number of -1 or more, got 2.5"},
                                {"max_tokens=0", "a whole number of 1 or more, got 0"},
                                {"seed=x", "a whole number, got x"},
                                {"repetition_penalty=0", "a number of 0.01 to 100, got 0"},
                                {"stop=", "texts that are not empty, got nothing"},
                                {"stop=[1]", "a JSON list of at most 16 texts"}};
  for (const Case& one : cases) {
    const std::string said = problem_of_words("serve", {one.setting});
    const std::string name = "[serve] " + one.setting.substr(0, one.setting.find('=')) + ": expected ";
    EXPECT_TRUE(said.starts_with(name)) << said;
    EXPECT_NE(said.find(one.expected), std::string::npos) << said;
  }
}

TEST(SamplingWordsTest, FieldsOfRequests) {
  EXPECT_EQ(request_field("max_tokens", "5"), 5);
  EXPECT_EQ(request_field("reasoning_effort", "low"), "low");
  EXPECT_EQ(request_field("model", "5"), "5");
  EXPECT_EQ(request_field("chat_template_kwargs", "{\"a\": 1}"), (nlohmann::json{{"a", 1}}));
  EXPECT_THROW(request_field("temperature", "warm"), Error);
  EXPECT_THROW(request_field("messages", "[]"), Error);
  try {
    request_field("temprature", "1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[chat] unknown field temprature; the nearest is temperature");
  }
}

}  // namespace
}  // namespace switchyard
