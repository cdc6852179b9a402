// Tests texts of one call: drafts and ends change none of the others.
#include "texts/generate.h"

#include <gtest/gtest.h>

#include "generate/generator_testing.h"
#include "kernels/registry/row_independence.h"
#include "texts/ngram_drafts.h"

namespace switchyard {
namespace {

using namespace generator_test;

GenerateOptions with_drafts(GenerateOptions options, std::int64_t ahead = 1) {
  options.drafts = ahead;
  return options;
}

constexpr std::int64_t kFewTokens = 6;  // a guess is right often, and wrong often

std::vector<std::vector<std::int32_t>> few_tokens(std::vector<std::vector<std::int32_t>> prompts) {
  for (auto& prompt : prompts) {
    for (std::int32_t& token : prompt) token %= kFewTokens;
  }
  return prompts;
}

// Texts with guesses are those without; some of the guesses are right.
void expect_same_texts(Generator& plain, Generator& guessing, const GenerateOptions& options,
                       const GenerateOptions& guesses) {
  const std::vector<std::vector<std::int32_t>> prompts = few_tokens(random_rows({2, 7, 1, 4}));
  const auto nothing = [](std::size_t, std::int32_t) {};
  plain.record_routing();
  guessing.record_routing();
  const Generated want = generate(plain, prompts, options, nothing),
                  got = generate(guessing, prompts, guesses, nothing);
  for (std::size_t r = 0; r < prompts.size(); ++r) {
    EXPECT_EQ(got.texts[r].tokens, want.texts[r].tokens) << r;
    if (plain.is_first_rank()) {  // guesses that were wrong have left no experts
      ASSERT_EQ(guessing.length(r), plain.length(r));
      EXPECT_EQ(guessing.routing(r, guessing.length(r)), plain.routing(r, plain.length(r)));
    }
    for (std::size_t i = 0; i < want.texts[r].tokens.size(); ++i)
      EXPECT_NEAR(got.texts[r].log_probs[i], want.texts[r].log_probs[i], 1e-4);
  }
  EXPECT_GT(got.accepted, 0);
  EXPECT_LT(got.accepted, got.drafted);
  EXPECT_LE(got.steps, want.steps) << "the slowest text's";
}

// A layout's settings, pieces of prompts, and whether tokens are drawn.
struct Way {
  std::string layout;
  std::int64_t piece = 0;
  bool drawn = false;
};

// Drafts of the model itself and guesses from the text, of 1 token and of several, change no text.
void expect_drafts_change_nothing(Keys keys, const Way& way) {
  SCOPED_TRACE(way.layout);
  keys["vocab_size"] = kFewTokens;
  keys["mtp_num_layers"] = 1;
  const Config config = Config::from_map(keys, settings_of(way.layout));
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    const ModelConfig plain = without_predictions(model);
    GenerateOptions options{
        .most_tokens = 25, .log_probs = true, .vocab = kFewTokens, .prompt_chunk = way.piece};
    if (way.drawn) options.sampling.strategy = SamplingStrategy::weighted;
    for (const std::int64_t ahead : {1, 3}) {
      Generator one(context, plain, parameters, 4, 32),
          two(context, model, parameters, 4, 32, true, 0, ahead);
      expect_same_texts(one, two, options, with_drafts(options, ahead));
    }
    for (const std::int64_t most : {1, 4}) {
      Generator again(context, plain, parameters, 4, 32),
          guessing(context, plain, parameters, 4, 32, true, 0, most);
      GenerateOptions guesses = options;
      guesses.ngram_drafts = most;
      expect_same_texts(again, guessing, options, guesses);
    }
  });
}

TEST(Drafts, ChangeNoText) {
  for (const char* layout :
       {"", "ranks=2 ici_data_parallelism=2", "ranks=4 ici_fsdp_parallelism=2 ici_expert_parallelism=2",
        "ranks=2 ici_tensor_parallelism=2"}) {
    for (const Keys& keys :
         {latent(), indexed(), shared_choices(), grouped_queries(), windowed(), two_kinds(), delta_nets()}) {
      for (const bool drawn : {false, true}) {
        for (const std::int64_t piece : {0, 3}) expect_drafts_change_nothing(keys, {layout, piece, drawn});
      }
    }
  }
}

// Memory that only kernels reach; a GPU's, which is slow here.
TEST(Drafts, ChangeNoTextOnADevice) {
  for (const Keys& keys : {latent(), two_kinds(), delta_nets()})
    expect_drafts_change_nothing(keys, {"device=fenced", 3, false});
  expect_drafts_change_nothing(delta_nets(), {"device=cuda_emulated", 0, false});
}

// In bfloat16, where near ties would show.
TEST(Drafts, KeepBitsWhereRowsAreIndependent) {
  const RowIndependence independent;
  for (Keys keys : {latent(), grouped_queries(), windowed(), two_kinds(), delta_nets()}) {
    keys["vocab_size"] = kFewTokens;
    keys["mtp_num_layers"] = 1;
    keys["dtype"] = "bfloat16";
    const Config config = Config::from_map(keys, {});
    const ModelConfig model = model_config(config);
    SCOPED_TRACE(model.block->name);
    run_session(config, mesh_from_config(config), [&](Context& context) {
      const Parameters parameters =
          Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
      const ModelConfig plain = without_predictions(model);
      const auto made = [&](const ModelConfig& of, const GenerateOptions& options) {
        Generator generator(context, of, parameters, 4, 64, true, 0, 4);
        return generate(generator, few_tokens(random_rows({2, 7, 1, 4})), options,
                        [](std::size_t, std::int32_t) {});
      };
      const GenerateOptions options{
          .most_tokens = 50, .log_probs = true, .vocab = kFewTokens, .prompt_chunk = 3};
      GenerateOptions guesses = options;
      guesses.ngram_drafts = 4;
      const Generated want = made(plain, options), ngram = made(plain, guesses),
                      next = made(model, with_drafts(options)),
                      further = made(model, with_drafts(options, 4));
      for (const Generated* const got : {&ngram, &next, &further}) {
        EXPECT_GT(got->accepted, 0);
        for (std::size_t r = 0; r < want.texts.size(); ++r) {
          EXPECT_EQ(got->texts[r].tokens, want.texts[r].tokens);
          EXPECT_EQ(got->texts[r].log_probs, want.texts[r].log_probs);
        }
      }
    });
  }
}

// Tokens of few numbers, whose keys may be equal: what is guessed followed the same tokens.
TEST(NgramDrafts, KeysThatAreEqualByChance) {
  for (const std::int32_t few : {2, 3, 5}) {
    texts::NgramDrafts drafts;
    std::vector<std::int32_t> tokens;
    for (std::uint64_t i = 0; i < 400; ++i) {
      const std::vector<std::int32_t> guessed = drafts.guess(1);
      if (!guessed.empty()) {
        const std::vector<std::int32_t> want{tokens.end()[-2], tokens.end()[-1], guessed[0]};
        EXPECT_NE(std::ranges::search(tokens, want).begin(), tokens.end()) << i;
      }
      tokens.push_back(rng_randint(rng_key(5), i, 0, few));
      drafts.add(std::span(tokens).last(1));
    }
  }
}

TEST(NgramDrafts, GuessWhatFollowedTheSameTokens) {
  using Tokens = std::vector<std::int32_t>;
  texts::NgramDrafts drafts;
  EXPECT_EQ(drafts.guess(3), Tokens());
  drafts.add(Tokens{5, 1, 2, 3, 4, 9, 1, 2});
  EXPECT_EQ(drafts.guess(3), (Tokens{3, 4, 9}));
  EXPECT_EQ(drafts.guess(0), Tokens());
  drafts.add(Tokens{7});
  EXPECT_EQ(drafts.guess(3), Tokens()) << "2 and 7 were never together";
  drafts.add(Tokens{5, 1, 2});  // of the longest agreement, the last place
  EXPECT_EQ(drafts.guess(2), (Tokens{3, 4}));
  drafts.add(Tokens{8, 8, 8});
  EXPECT_EQ(drafts.guess(4), (Tokens{8, 8, 8, 8})) << "what repeats goes on behind the text's end";
}

TEST(DraftRule, WeighsTheUnionOfExperts) {
  const texts::CallCost dense, sparse{.always = 1, .experts = 16, .chosen = 1.0 / 16};
  EXPECT_EQ(dense.of(5), dense.of(1));
  EXPECT_DOUBLE_EQ(sparse.of(1), 2);
  EXPECT_LT(sparse.of(100), 17);
  EXPECT_EQ(texts::drafts_worth(dense, 0.1, 8, 1), 8) << "drafts cost nothing";
  EXPECT_EQ(texts::drafts_worth({.work = 0.05}, 0.01, 8, 1), 0);
  EXPECT_EQ(texts::drafts_worth(sparse, 0.3, 8, 1), 0) << "a token's experts cost more than 0.3 tokens give";
  EXPECT_EQ(texts::drafts_worth(sparse, 1, 8, 1), 8);
  const std::int64_t some = texts::drafts_worth(sparse, 0.8, 8, 1);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 8) << "a draft far ahead is rarely right";
  EXPECT_GT(texts::drafts_worth(sparse, 0.3, 8, 64), 0) << "many texts read all experts in any case";
}

TEST(DraftRule, ATextsOwnDraftsSayWhatIsRight) {
  texts::DraftRate rate;
  EXPECT_GT(rate.share(), 0.5);
  for (int i = 0; i < 20; ++i) rate.add(0, true);
  EXPECT_LT(rate.share(), 0.1);
  for (int i = 0; i < 20; ++i) rate.add(4, false);
  EXPECT_GT(rate.share(), 0.9);
}

// A text whose guesses are wrong goes on without them, and with them again where it repeats.
TEST(Drafts, AreHeldBackWhereTheyCostMore) {
  Keys keys = grouped_queries();
  keys["vocab_size"] = kFewTokens;
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    const auto made = [&](GenerateOptions options) {
      options.most_tokens = 50, options.vocab = kFewTokens, options.ngram_drafts = 4;
      options.sampling.strategy = SamplingStrategy::weighted;
      Generator generator(context, model, parameters, 1, 64, true, 0, 4);
      return generate(generator, few_tokens(random_rows({7})), options, [](std::size_t, std::int32_t) {});
    };
    const Generated free = made({}),
                    dear = made({.call_cost = {.always = 0, .experts = 100, .chosen = 0.01}});
    EXPECT_EQ(free.held, 0);
    EXPECT_GT(free.drafted, 0);
    EXPECT_GT(dear.held, 0);
    EXPECT_LT(dear.drafted, free.drafted);
    EXPECT_EQ(dear.texts[0].tokens, free.texts[0].tokens);
  });
}

TEST(Drafts, EndWhereTheTextEnds) {
  Keys keys = latent();
  keys["mtp_num_layers"] = 1;
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    const auto made = [&](const GenerateOptions& options) {
      Generator generator(context, model, parameters, 2, 24);
      return generate(generator, random_rows({2, 3}), with_drafts(options), [](std::size_t, std::int32_t) {});
    };
    const Generated whole = made({.most_tokens = 9, .vocab = kVocabulary});
    const std::int32_t end = whole.texts[0].tokens[4];
    const Generated ended = made({.most_tokens = 9, .vocab = kVocabulary, .ends = {end}});
    const auto& tokens = whole.texts[0].tokens;
    const auto at = std::find(tokens.begin(), tokens.end(), end);
    EXPECT_EQ(ended.texts[0].tokens, std::vector<std::int32_t>(tokens.begin(), at + 1));
    EXPECT_TRUE(ended.texts[0].ended);
    EXPECT_EQ(made({.most_tokens = 0, .vocab = kVocabulary}).texts[0].tokens.size(), 0u);
    EXPECT_EQ(made({.most_tokens = 1, .vocab = kVocabulary}).texts[0].tokens.size(), 1u);
  });
}

TEST(Generator, EndsRowsByThemselves) {
  const Config config = Config::from_map(grouped_queries(), {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    const auto made = [&](const GenerateOptions& options) {
      Generator generator(context, model, parameters, 2, 12);
      std::vector<std::int32_t> seen;
      const Generated g =
          generate(generator, random_rows({2, 3}), options, [&](std::size_t row, std::int32_t t) {
            if (row == 0) seen.push_back(t);
          });
      EXPECT_EQ(seen, g.texts[0].tokens);
      for (const GeneratedText& row : g.texts) EXPECT_EQ(row.tokens.size(), row.log_probs.size());
      return g;
    };
    const GenerateOptions free{.most_tokens = 6, .log_probs = true, .vocab = kVocabulary};
    const Generated whole = made(free);
    ASSERT_EQ(whole.texts[0].tokens.size(), 6u);
    GenerateOptions ending = free;
    const std::int32_t end = whole.texts[0].tokens[2];
    // An id that never comes, the end, and one that comes after it where that is another one.
    ending.ends = {kVocabulary + 5, end, whole.texts[0].tokens[4]};
    const auto is_end = [&](std::int32_t token) {
      return std::find(ending.ends.begin(), ending.ends.end(), token) != ending.ends.end();
    };
    const Generated ended = made(ending);
    const auto at = std::find_if(whole.texts[0].tokens.begin(), whole.texts[0].tokens.end(),
                                 [&](std::int32_t t) { return is_end(t); });
    EXPECT_EQ(ended.texts[0].tokens, std::vector<std::int32_t>(whole.texts[0].tokens.begin(), at + 1));
    EXPECT_TRUE(ended.texts[0].ended);
    // The other row goes on as if it were alone, up to an end of its own.
    const auto& tokens = ended.texts[1].tokens;
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.texts[1].tokens.begin()));
    EXPECT_TRUE(tokens.size() == 6 || is_end(tokens.back()));
    for (const std::int64_t piece : {1, 2, 3}) {
      GenerateOptions in_pieces = free;
      in_pieces.prompt_chunk = piece;
      EXPECT_EQ(made(in_pieces).texts[1].tokens, whole.texts[1].tokens);
    }
    GenerateOptions narrow = free;
    narrow.vocab = 3;
    const Generated few = made(narrow);
    for (const std::int32_t token : few.texts[0].tokens) EXPECT_LT(token, 3);
    EXPECT_EQ(made({.most_tokens = 0, .vocab = kVocabulary}).texts[0].tokens.size(), 0u);
  });
}

}  // namespace
}  // namespace switchyard
