// What a generator gives piece by piece is what the model gives for all tokens at once, on any layout; and
// draws follow their distribution.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "core/rng.h"
#include "engine/session.h"
#include "generate/generator.h"
#include "generate/generator_testing.h"
#include "generate/token_text.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

using namespace generator_test;

constexpr std::size_t kAnew = 99;  // in place of a number of tokens: the slot is cleared

// The rows in pieces of the given numbers of tokens; every piece's logits are compared.
void expect_same_in_pieces(const Keys& keys, const std::string& layout, const Rows& rows,
                           const std::vector<std::vector<std::size_t>>& pieces) {
  SCOPED_TRACE(layout);
  const Config config = Config::from_map(keys, settings_of(layout));
  const ModelConfig model = model_config(config);
  const Mesh mesh = mesh_from_config(config);
  run_session(config, mesh, [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, static_cast<std::int64_t>(rows.size()), 12);
    std::vector<std::size_t> fed(rows.size(), 0);
    for (const auto& counts : pieces) {
      std::vector<SlotTokens> piece;
      Rows so_far;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t r = counts.size() - 1 - i;  // in another order than the rows'
        if (counts[r] == kAnew) {
          generator.clear(r);
          fed[r] = 0;
        }
        if (counts[r] == 0 || counts[r] == kAnew) continue;
        const auto from = rows[r].begin() + static_cast<std::ptrdiff_t>(fed[r]);
        piece.push_back({r, {from, from + static_cast<std::ptrdiff_t>(counts[r])}});
        fed[r] += counts[r];
        so_far.emplace_back(rows[r].begin(), rows[r].begin() + static_cast<std::ptrdiff_t>(fed[r]));
      }
      if (piece.empty()) continue;
      const Tensor got = generator.feed(piece);
      EXPECT_EQ(got.defined(), context.comm->rank() == 0);
      const auto want = got.defined() ? logits_at_once(keys, so_far) : std::vector<std::vector<float>>();
      for (std::size_t i = 0; i < piece.size(); ++i) {
        EXPECT_EQ(generator.length(piece[i].slot), static_cast<std::int64_t>(fed[piece[i].slot]));
        for (std::size_t v = 0; got.defined() && v < want[i].size(); ++v)
          ASSERT_NEAR(got.span<float>()[i * want[i].size() + v], want[i][v], 2e-5)
              << "slot " << piece[i].slot;
      }
    }
  });
}

// Latents of all slots in one launch; with chosen keys a slot at a time.
TEST(Generator, PiecesOfLatentsOnAGpu) {
  const Rows rows = random_rows({8, 5, 7});
  for (const Keys& keys : {latent(), indexed()})
    expect_same_in_pieces(keys, "device=cuda_emulated", rows, {{4, 1, 3}, {2, 2, 1}, {1, 0, 2}, {1, 2, 1}});
}

// Weights that lie on the host are fetched for each call, before they are gathered over ranks.
TEST(Generator, WeightsOnTheHost) {
  const Rows rows = random_rows({8, 5, 7});
  const auto logits = [&](const Keys& keys, const std::string& layout) {
    return logits_in_pieces(keys, "device=cuda_emulated " + layout, rows,
                            {{4, 1, 3}, {2, 2, 1}, {1, 1, 2}, {1, 1, 1}});
  };
  const std::string experts = "weight_places=layers.1.moe.w=host", all = "parameter_memory_host_offload=true";
  for (const char* layout : {"", "ranks=2 ici_expert_parallelism=2", "ranks=3 ici_fsdp_parallelism=3"}) {
    SCOPED_TRACE(layout);
    const auto want = logits(grouped_queries(), layout);
    EXPECT_EQ(logits(grouped_queries(), experts + " " + layout), want);
    EXPECT_EQ(logits(grouped_queries(), all + " " + layout), want);
  }
  Keys tied = grouped_queries();
  tied["logits_via_embedding"] = true;
  for (const Keys& keys : {latent(), indexed(), delta_nets(), tied})
    EXPECT_EQ(logits(keys, all), logits(keys, ""));
}

TEST(Generator, PiecesOfRowsOfAnyLength) {
  const Rows rows = random_rows({8, 5, 7});
  for (const char* layout : kLayouts) {
    expect_same_in_pieces(grouped_queries(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(latent(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(envy(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(indexed(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(delta_nets(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(two_kinds(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(shared_choices(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
  }
}

// Texts of 2,048 tokens: whole, in pieces of 512 and of 7, from another slot's beginning, and with drafts
// that are taken back.
TEST(Generator, LongTexts) {
  constexpr std::int64_t kTokens = 2048, kDrafts = 4;
  const Rows rows = random_rows({kTokens});
  const std::vector<std::int32_t>& text = rows[0];
  Keys wide = two_kinds();
  wide["attention_kinds"]["window"]["sliding_window_size"] = 128;
  for (Keys keys : {wide, latent(), delta_nets()}) {  // choices of an indexer would have near ties
    keys["max_target_length"] = kTokens;
    const Config config = Config::from_map(keys, {});
    const ModelConfig model = model_config(config);
    SCOPED_TRACE(model.block->name);
    const std::vector<float> want = every_logits_at_once(keys, rows)[0];
    float largest = 0;
    for (const float logit : want) largest = std::max(largest, std::abs(logit));
    run_session(config, mesh_from_config(config), [&](Context& context) {
      const Parameters parameters =
          Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
      const auto tokens = [&](std::int64_t begin, std::int64_t end) {
        return std::vector<std::int32_t>(text.begin() + begin, text.begin() + end);
      };
      const auto compare = [&](const Tensor& got, std::int64_t row, std::int64_t token) {
        for (std::int64_t v = 0; v < kVocabulary; ++v)
          ASSERT_NEAR(got.span<float>()[static_cast<std::size_t>(row * kVocabulary + v)],
                      want[static_cast<std::size_t>(token * kVocabulary + v)], 1e-4f * largest)
              << "after token " << token;
      };
      const auto read = [&](Generator& generator, std::size_t slot, std::int64_t end, std::int64_t piece) {
        for (std::int64_t at = generator.length(slot); at < end; at = generator.length(slot)) {
          const SlotTokens fed{slot, tokens(at, std::min(at + piece, end))};
          const Tensor got = generator.feed(std::span(&fed, 1));
          compare(got, 0, generator.length(slot) - 1);
        }
      };
      Generator generator(context, model, parameters, 2, kTokens, false, 1, kDrafts);
      for (const std::int64_t piece : {kTokens, std::int64_t{512}, std::int64_t{7}}) {
        read(generator, 0, kTokens, piece);
        generator.clear(0);
      }
      read(generator, 0, 1000, 512);
      generator.keep_checkpoint(0);
      ASSERT_EQ(generator.longest_prefix(0, 1000), 1000);
      generator.copy_prefix(1, 0, 1000);
      read(generator, 1, 1400, 512);
      // The first `right` of four drafts are right.
      for (std::int64_t at = 1400, right = 0; at + kDrafts < kTokens;
           at += right + 1, right = (right + 1) % 5) {
        SlotTokens fed{1, tokens(at, at + 1 + right)};
        for (std::int64_t i = right; i < kDrafts; ++i)
          fed.tokens.push_back((text[static_cast<std::size_t>(at + i + 1)] + 1) % kVocabulary);
        const Tensor got = generator.feed_each(std::span(&fed, 1), true);
        for (std::int64_t i = 0; i <= right; ++i) compare(got, i, at + i);
        if (right < kDrafts) generator.copy_prefix(1, 1, at + 1 + right);
      }
    });
  }
}

// Over several chunks, in pieces that end within them and at their ends, then token by token.
TEST(Generator, PiecesOfRowsInChunks) {
  const Rows rows = random_rows({12, 9, 10});
  for (const char* layout : kLayouts)
    expect_same_in_pieces(chunked(), layout, rows, {{4, 3, 1}, {3, 1, 6}, {1, 1, 1}, {1, 1, 1}, {3, 3, 1}});
}

// Without its last norms Envy is Qwen3's layers with one expert, whose weight divided by its sum is 1; with
// them, and the bound, it is another function.
TEST(Generator, EnvyIsQwen3WithNormsBehind) {
  const Rows rows = random_rows({6, 4});
  Keys plain = envy(), qwen3 = envy(), free = envy();
  plain["use_post_ffw_norm"] = false;
  qwen3.erase("use_post_ffw_norm");
  qwen3.erase("interleave_moe_layer_step");
  qwen3["decoder_block"] = "qwen3_moe";
  qwen3["norm_topk_prob"] = true;
  qwen3["moe_layers"] = {1};
  free["clip_qkv"] = 0.0;
  EXPECT_EQ(logits_at_once(plain, rows), logits_at_once(qwen3, rows));
  EXPECT_NE(logits_at_once(envy(), rows), logits_at_once(plain, rows));
  EXPECT_NE(logits_at_once(envy(), rows), logits_at_once(free, rows));
}

// The logits that tokens are drawn from are capped as those of the loss are.
TEST(Generator, CapsLogits) {
  const Rows rows = random_rows({6, 4});
  Keys capped = latent();
  capped["final_logits_soft_cap"] = 0.5;
  const auto free = logits_at_once(latent(), rows), got = logits_at_once(capped, rows);
  float largest = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t v = 0; v < free[r].size(); ++v) {
      ASSERT_NEAR(got[r][v], 0.5f * std::tanh(free[r][v] / 0.5f), 1e-6);
      largest = std::max(largest, std::abs(free[r][v]));
    }
  }
  EXPECT_GT(largest, 0.5f);  // else a missing cap might pass
  for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_pipeline_parallelism=2"})
    expect_same_in_pieces(capped, layout, rows, {{4, 1}, {1, 2}, {1, 1}});
}

// A token goes round a pipeline as often as its stages have blocks; the first and the last have the head.
TEST(Generator, BlocksOfStages) {
  const Rows rows = random_rows({6, 4});
  for (Keys keys : {grouped_queries(), latent()}) {
    keys["base_num_decoder_layers"] = 7;
    keys["logits_via_embedding"] = true;
    for (const char* layout : {"ranks=2 ici_pipeline_parallelism=2 num_pipeline_repeats=3",
                               "ranks=6 ici_pipeline_parallelism=3 num_pipeline_repeats=2 "
                               "ici_tensor_parallelism=2"})
      expect_same_in_pieces(keys, layout, rows, {{4, 1}, {1, 2}, {1, 1}});
  }
}

// Rows that come, pause, and give way to others, where the mesh splits them and where it cannot.
TEST(Generator, SomeRowsAtATime) {
  const Rows rows = random_rows({8, 5, 7, 6});
  const std::vector<std::vector<std::size_t>> pieces{
      {0, 3, 0, 0},     {2, 0, 0, 0}, {1, 1, 0, 1}, {0, 0, 4, 0},     {3, kAnew, 0, 2},
      {kAnew, 2, 1, 0}, {0, 1, 0, 0}, {5, 1, 2, 3}, {kAnew, 0, 0, 0}, {1, 0, 0, 0}};
  for (const char* layout : kLayouts) {
    expect_same_in_pieces(grouped_queries(), layout, rows, pieces);
    expect_same_in_pieces(latent(), layout, rows, pieces);
    expect_same_in_pieces(indexed(), layout, rows, pieces);
    expect_same_in_pieces(delta_nets(), layout, rows, pieces);
  }
  for (const char* layout :
       {"ranks=2 ici_fsdp_parallelism=2", "ranks=4 ici_fsdp_parallelism=4",
        "ranks=4 ici_data_parallelism=2 ici_expert_parallelism=2", "ranks=8 ici_fsdp_parallelism=8"}) {
    expect_same_in_pieces(grouped_queries(), layout, rows, pieces);
    expect_same_in_pieces(latent(), layout, rows, pieces);
    expect_same_in_pieces(indexed(), layout, rows, pieces);
    expect_same_in_pieces(delta_nets(), layout, rows, pieces);
  }
}

// A row that begins with another one's tokens goes on as if it had been fed them.
TEST(Generator, RowsBeginWithOthers) {
  const Rows rows = random_rows({7});
  Keys grouped_in_8_bits = grouped_queries(), latent_in_8_bits = latent();
  grouped_in_8_bits["quantize_kvcache"] = latent_in_8_bits["quantize_kvcache"] = true;
  for (const Keys& keys : {grouped_queries(), latent(), indexed(), grouped_in_8_bits, latent_in_8_bits}) {
    const Config config = Config::from_map(keys, {});
    const ModelConfig model = model_config(config);
    const auto want = model.int8_cache ? logits_in_pieces(keys, "", rows, {{7}}) : logits_at_once(keys, rows);
    run_session(config, mesh_from_config(config), [&](Context& context) {
      const Parameters parameters =
          Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
      Generator generator(context, model, parameters, 3, 12);
      const auto part = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        return std::vector<std::int32_t>(rows[0].begin() + begin, rows[0].begin() + end);
      };
      const auto expect_last = [&](const SlotTokens& fed) {
        const Tensor got = generator.feed(std::span(&fed, 1));
        for (std::size_t v = 0; v < want[0].size(); ++v) ASSERT_NEAR(got.span<float>()[v], want[0][v], 2e-5);
      };
      expect_last({1, part(0, 7)});
      generator.copy_prefix(2, 1, 5);
      EXPECT_EQ(generator.length(2), 5);
      expect_last({2, part(5, 7)});
      generator.copy_prefix(1, 1, 6);  // its own
      expect_last({1, part(6, 7)});
      generator.copy_prefix(0, 2, 0);
      expect_last({0, part(0, 7)});
    });
  }
}

// A gated delta net remembers a whole text, which others begin with.
TEST(Generator, RowsBeginWithAllOfAnother) {
  const Rows rows = random_rows({7});
  const auto want = logits_at_once(delta_nets(), rows);
  const Config config = Config::from_map(delta_nets(), {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 3, 12);
    const auto feed = [&](std::size_t row, std::ptrdiff_t begin, std::ptrdiff_t end) {
      const SlotTokens fed{row, {rows[0].begin() + begin, rows[0].begin() + end}};
      return generator.feed(std::span(&fed, 1));
    };
    const auto expect_last = [&](const Tensor& got) {
      for (std::size_t v = 0; v < want[0].size(); ++v) ASSERT_NEAR(got.span<float>()[v], want[0][v], 2e-5);
    };
    feed(1, 0, 5);
    generator.copy_prefix(2, 1, 5);
    expect_last(feed(2, 5, 7));
    expect_last(feed(1, 5, 7));
    generator.copy_prefix(1, 1, 0);
    expect_last(feed(1, 0, 7));
  });
}

// Text that comes piece by piece is never part of a character, and is all there is in the end.
TEST(TokenText, GivesWholeCharacters) {
  const auto tokenizer = make_tokenizer("byte", "");
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 b\xff c\xe2\x82";
  TokenText characters(*tokenizer, tokenizer->encode("before \xc3"));
  std::string all;
  std::vector<std::string> given;
  for (const std::int32_t token : tokenizer->encode(text)) {
    given.push_back(characters.add(token));
    all += given.back();
  }
  EXPECT_EQ(given[1] + "|" + given[2], "|\xc3\xa9");
  EXPECT_EQ(given[3] + given[4] + "|" + given[5], "|\xe2\x82\xac");
  EXPECT_EQ(given[6] + given[7] + given[8] + "|" + given[9], "|\xf0\x9f\x98\x80");
  EXPECT_EQ(all + characters.finish(), text);
}

TEST(TokenText, FinishesTheCharacterThatThePromptBegins) {
  const auto tokenizer = make_tokenizer("byte", "");
  const std::vector<std::int32_t> smile = tokenizer->encode("\xf0\x9f\x98\x80!");
  TokenText characters(*tokenizer, std::span(smile).first(3));
  EXPECT_EQ(characters.add(smile[3]), "\xf0\x9f\x98\x80");
  EXPECT_EQ(characters.add(smile[4]), "!");
  EXPECT_EQ(characters.finish(), "");
  TokenText ended(*tokenizer, std::span(smile).first(2));
  EXPECT_EQ(ended.add(smile[4]), "!");  // it never becomes a character
}

// How often each token is drawn, over evenly spread numbers.
std::map<std::int32_t, double> shares(std::span<const float> logits, const SamplingConfig& config) {
  constexpr int kDraws = 10000;
  std::map<std::int32_t, double> drawn;
  for (int i = 0; i < kDraws; ++i)
    drawn[pick_token(logits, config, (static_cast<float>(i) + 0.5f) / kDraws)] += 1.0 / kDraws;
  return drawn;
}

void expect_shares(const std::map<std::int32_t, double>& got, const std::map<std::int32_t, double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [token, share] : want) EXPECT_NEAR(got.at(token), share, 2e-3) << token;
}

TEST(Sampling, EveryStrategy) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 of the tokens 2, 0, 3, 1.
  const float p[] = {0.3f, 0.1f, 0.4f, 0.2f};
  std::vector<float> logits;
  for (const float x : p) logits.push_back(std::log(x) + 5);
  using enum SamplingStrategy;
  expect_shares(shares(logits, {greedy}), {{2, 1}});
  expect_shares(shares(logits, {weighted}), {{0, 0.3}, {1, 0.1}, {2, 0.4}, {3, 0.2}});
  expect_shares(shares(logits, {weighted, 0}), {{2, 1}});
  expect_shares(shares(logits, {weighted, 0.5}), {{0, 0.3}, {1, 0.1 / 3}, {2, 1.6 / 3}, {3, 0.4 / 3}});
  expect_shares(shares(logits, {topk, 1, -1, 2}), {{2, 0.4 / 0.7}, {0, 0.3 / 0.7}});
  expect_shares(shares(logits, {topk, 1, -1, 9}), {{0, 0.3}, {1, 0.1}, {2, 0.4}, {3, 0.2}});
  expect_shares(shares(logits, {nucleus, 1, 0.6}), {{2, 0.4 / 0.7}, {0, 0.3 / 0.7}});
  expect_shares(shares(logits, {nucleus, 1, 0.3}), {{2, 1}});
  expect_shares(shares(logits, {nucleus, 1, 1.0}), {{0, 0.3}, {1, 0.1}, {2, 0.4}, {3, 0.2}});
  // Of three with squared probabilities 16, 9, 4 the first two make 25 / 29.
  expect_shares(shares(logits, {composite, 0.5, 0.8, 3}), {{2, 16.0 / 25}, {0, 9.0 / 25}});
  EXPECT_NEAR(log_probability(logits, pick_token(logits, {greedy}, 0)), std::log(0.4), 1e-6);
  EXPECT_NEAR(log_probability(logits, pick_token(logits, {topk, 0.5, -1, 1}, 0)), std::log(0.4), 1e-6);

  const float none = -std::numeric_limits<float>::infinity();
  const float masked[] = {none, 1, none, 1};
  for (const SamplingStrategy s : {weighted, topk, nucleus, composite})
    expect_shares(shares(masked, {s, 1, 1.0, 4}), {{1, 0.5}, {3, 0.5}});
  const float ties[] = {2, 7, 7};
  EXPECT_EQ(pick_token(ties, {greedy}, 0.9f), 1);
  EXPECT_EQ(pick_token(ties, {topk, 1, -1, 1}, 0.9f), 1);
}

}  // namespace
}  // namespace switchyard
