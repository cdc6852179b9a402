// What a folder's generation_config.json makes of `generate`.
#include "generate/generation_defaults.h"

#include <gtest/gtest.h>

#include <fstream>

#include "config/config.h"
#include "core/error.h"
#include "core/testing.h"
#include "generate/sampling.h"

namespace switchyard {
namespace {

using nlohmann::json;

class GenerationDefaults : public ::testing::Test {
 protected:
  ~GenerationDefaults() override { std::filesystem::remove_all(folder_); }

  std::map<std::string, json> of(const std::string& generation, const std::string& model = "") {
    std::filesystem::create_directories(folder_);
    for (const auto& [name, text] :
         {std::pair{"generation_config.json", generation}, {"config.json", model}}) {
      std::filesystem::remove(folder_ / name);
      if (!text.empty()) std::ofstream(folder_ / name) << text;
    }
    return generation_defaults(folder_);
  }
  SamplingConfig sampling(const std::string& generation, const std::vector<std::string>& settings = {}) {
    return sampling_config(Config::from_map(of(generation), settings), 100);
  }
  void expect_refused(const std::string& generation, const std::string& words) {
    try {
      of(generation);
      ADD_FAILURE() << generation;
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(words), std::string::npos) << message;
      EXPECT_NE(message.find("generation_config.json"), std::string::npos) << message;
    }
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("generation_defaults_" + std::to_string(::getpid()));
};

TEST_F(GenerationDefaults, Strategies) {
  using enum SamplingStrategy;
  EXPECT_TRUE(of("").empty());
  EXPECT_TRUE(of("{}").empty());
  const SamplingConfig both = sampling(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.05, "transformers_version": "4.51.0", "bos_token_id": 3})");
  EXPECT_EQ(both.strategy, composite);
  EXPECT_EQ(both.temperature, 0.6);
  EXPECT_EQ(both.nucleus_p, 0.95);
  EXPECT_EQ(both.top_k, 20);
  EXPECT_EQ(both.min_p, 0.05);
  EXPECT_EQ(both.repetition_penalty, 1.05);
  const SamplingConfig top_p = sampling(R"({"do_sample": true, "top_p": 0.9, "top_k": 0, "min_p": null})");
  EXPECT_EQ(top_p.strategy, composite);
  EXPECT_GT(top_p.top_k, 1000000);
  EXPECT_EQ(sampling(R"({"do_sample": true, "top_k": 50, "top_p": 1.0})").strategy, topk);
  EXPECT_EQ(sampling(R"({"do_sample": true})").strategy, weighted);
  EXPECT_EQ(sampling(R"({"do_sample": true, "top_p": 0})").strategy, greedy);
  for (const char* text : {R"({"do_sample": false, "temperature": 0.6})", R"({"temperature": 0.6})"}) {
    EXPECT_EQ(sampling(text).strategy, greedy);
    EXPECT_EQ(sampling(text, {"decode_sampling_strategy=weighted"}).temperature, 0.6);
  }
  // The command line wins.
  const SamplingConfig own = sampling(R"({"do_sample": true, "temperature": 0.6, "top_k": 20})",
                                      {"decode_sampling_temperature=2", "decode_sampling_strategy=greedy"});
  EXPECT_EQ(own.strategy, greedy);
  EXPECT_EQ(own.temperature, 2);
  EXPECT_EQ(own.top_k, 20);
}

TEST_F(GenerationDefaults, Ends) {
  const auto tokenizer = make_tokenizer("byte", "");
  const auto ends = [&](const std::string& generation, const std::string& model,
                        const std::vector<std::string>& settings = {}) {
    return end_tokens(Config::from_map(of(generation, model), settings), *tokenizer);
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ends("", ""), Ids{256});
  EXPECT_EQ(ends("", R"({"eos_token_id": 7})"), (Ids{7, 256}));
  EXPECT_EQ(ends("", R"({"eos_token_id": [9, 7, 256]})"), (Ids{7, 9, 256}));
  EXPECT_EQ(ends(R"({"eos_token_id": [5, 6]})", R"({"eos_token_id": 7})"), (Ids{5, 6, 256}));
  EXPECT_EQ(ends(R"({"eos_token_id": null})", R"({"eos_token_id": 7})"), (Ids{7, 256}));
  EXPECT_EQ(ends(R"({"eos_token_id": 5})", "", {"decode_end_tokens=[8,4]"}), (Ids{4, 8, 256}));
  EXPECT_THROW(ends("", "", {"decode_end_tokens=[-1]"}), Error);
}

TEST_F(GenerationDefaults, FieldsWithoutEffectAreNamed) {
  const auto notice = [&](const json& fields) {
    of(fields.dump());
    return ignored_generation_fields(folder_);
  };
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(ignored_generation_fields(folder_), "");
  const json acting = {{"suppress_tokens", {5}},
                       {"begin_suppress_tokens", {5}},
                       {"bad_words_ids", {{5}}},
                       {"no_repeat_ngram_size", 2},
                       {"sequence_bias", {{{5}, -10.0}}},
                       {"forced_bos_token_id", 7},
                       {"forced_eos_token_id", 7},
                       {"min_new_tokens", 3},
                       {"max_new_tokens", 3},
                       {"stop_strings", {"x"}},
                       {"typical_p", 0.9},
                       {"epsilon_cutoff", 1e-3},
                       {"num_beams", 4},
                       {"guidance_scale", 1.5},
                       {"renormalize_logits", true},
                       {"a_field_of_later", "x"}};
  const std::string all = notice(acting);
  EXPECT_NE(all.find("generation_config.json: without effect here: "), std::string::npos) << all;
  EXPECT_EQ(all.find('\n'), std::string::npos);
  for (const auto& [name, value] : acting.items()) {
    EXPECT_NE(all.find("\"" + name + "\""), std::string::npos) << name;
    const std::string one = notice({{name, value}, {"temperature", 0.5}, {"eos_token_id", 3}});
    EXPECT_TRUE(one.ends_with("without effect here: \"" + name + "\"")) << one;
    if (value.is_array()) {
      EXPECT_EQ(notice({{name, json::array()}}), "") << name;
    }
    EXPECT_EQ(notice({{name, nullptr}}), "") << name;
  }
  EXPECT_EQ(notice({{"no_repeat_ngram_size", 0},
                    {"min_new_tokens", 0},
                    {"epsilon_cutoff", 0.0},
                    {"typical_p", 1.0},
                    {"num_beams", 1},
                    {"length_penalty", 1.0},
                    {"guidance_scale", 1},
                    {"renormalize_logits", false},
                    {"transformers_version", "5.24.0"},
                    {"bos_token_id", 1},
                    {"use_cache", true},
                    {"temperature", 0.7},
                    {"do_sample", true}}),
            "");
}

TEST_F(GenerationDefaults, RefusedInOneLine) {
  expect_refused("[]", "expected an object");
  expect_refused("{", "generation_config.json");
  expect_refused(R"({"temperature": "hot"})", "temperature: expected a number of 0 to 100");
  expect_refused(R"({"top_p": 1.5})", "top_p: expected a number of 0 to 1");
  expect_refused(R"({"top_k": -1})", "top_k");
  expect_refused(R"({"do_sample": 1})", "do_sample: expected true or false");
  expect_refused(R"({"repetition_penalty": 0})", "repetition_penalty");
  expect_refused(R"({"eos_token_id": [1, "x"]})", "eos_token_id: expected a token or a list of tokens");
  expect_refused(R"({"eos_token_id": -5})", "eos_token_id");
}

TEST(Sampling, BiasesOfTheCommandLine) {
  const auto of = [](const std::string& setting) {
    return sampling_config(Config::from_map({}, std::vector<std::string>{"decode_logit_bias=" + setting}),
                           100);
  };
  const SamplingConfig config = of("[[5, -100], [99, 2.5]]");
  ASSERT_EQ(config.logit_bias.size(), 2u);
  EXPECT_EQ(config.logit_bias[0].token, 5);
  EXPECT_EQ(config.logit_bias[1].bias, 2.5);
  EXPECT_TRUE(of("[]").logit_bias.empty());
  for (const char* wrong : {"[[100, 1]]", "[[-1, 1]]", "[[5, 101]]", "[[5]]", "[5]", "[[5, 1], [5, 2]]",
                            "[[5, x]]", "{5: 1}", "5", "[[5, nan]]"}) {
    try {
      of(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("decode_logit_bias"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace switchyard
