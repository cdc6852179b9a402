// Layers with windows or chunks remember only what tokens to come may see: texts far beyond that get the
// logits that they get at once, and memory does not grow with the capacity.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "generate/generator_testing.h"

namespace switchyard {
namespace {

using namespace generator_test;

constexpr std::int64_t kMostTokens = 40;

// gpt_oss's layers: with a window of five tokens and without in turns, sinks at each head.
Keys windows_in_turns() {
  Keys keys = windowed();
  keys.insert({{"mlp_activations", {"sigmoid", "linear"}}, {"mlp_activations_limit", 7.0}});
  keys["decoder_block"] = "gpt_oss";
  return keys;
}

Keys in_8_bits(Keys keys) {
  keys["quantize_kvcache"] = true;
  return keys;
}

// Calls `body` with a generator of `rows` rows, on every rank.
void with_generator(const Keys& keys, const std::string& layout, std::int64_t rows,
                    const std::function<void(Generator&)>& body) {
  const Config config = Config::from_map(keys, settings_of(layout));
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, rows, kMostTokens);
    body(generator);
  });
}

bool is_in_8_bits(const Keys& keys) {
  return keys.contains("quantize_kvcache");
}

// Sums in another order may put a number of 8 bits into its next place.
float tolerance(const Keys& keys) {
  return is_in_8_bits(keys) ? 1e-2f : 3e-5f;
}

std::string name_of_model(const Keys& keys) {
  return keys.at("decoder_block").get<std::string>() + (is_in_8_bits(keys) ? " in 8 bits" : "");
}

// Logits of what follows every token of each row, [row][token · vocabulary], where all tokens come at once.
std::vector<std::vector<float>> wanted_logits(const Keys& keys, const Rows& rows) {
  if (!is_in_8_bits(keys)) return every_logits_at_once(keys, rows);
  std::vector<std::vector<float>> all;
  with_generator(keys, "", 1, [&](Generator& generator) {
    for (const auto& row : rows) {
      const SlotTokens fed{0, row};
      generator.clear(0);
      const Tensor logits = generator.feed_each(std::span(&fed, 1));
      all.emplace_back(logits.span<float>().begin(), logits.span<float>().end());
    }
  });
  return all;
}

// Feeds rows of texts piece by piece and expects the logits of whole texts.
class TextsInPieces {
 public:
  TextsInPieces(Generator& generator, const Rows& texts, const std::vector<std::vector<float>>& want,
                float within)
      : generator_(generator), texts_(texts), want_(want), within_(within), text_of_(texts.size()) {
    std::iota(text_of_.begin(), text_of_.end(), 0);
  }
  // So many tokens of each row; 0: none.
  void feed(const std::vector<std::size_t>& counts) {
    std::vector<SlotTokens> fed;
    for (std::size_t row = 0; row < counts.size(); ++row) {
      if (counts[row] == 0) continue;
      const auto from = texts_[text_of_[row]].begin() + generator_.length(row);
      fed.push_back({row, {from, from + static_cast<std::ptrdiff_t>(counts[row])}});
    }
    const Tensor got = generator_.feed(fed);
    ASSERT_EQ(got.defined(), generator_.is_first_rank());
    for (std::size_t i = 0; i < fed.size(); ++i) {
      const auto end = static_cast<std::size_t>(generator_.length(fed[i].slot));
      const auto& want = want_[text_of_[fed[i].slot]];
      for (std::size_t v = 0; got.defined() && v < kVocabulary; ++v) {
        ASSERT_NEAR(got.span<float>()[i * kVocabulary + v], want[(end - 1) * kVocabulary + v], within_)
            << "slot " << fed[i].slot << " after " << end << " tokens";
      }
    }
  }
  void begin(std::size_t row, std::size_t from, std::int64_t tokens) {
    ASSERT_TRUE(generator_.can_copy_prefix(from, tokens));
    generator_.copy_prefix(row, from, tokens);
    text_of_[row] = text_of_[from];
  }

 private:
  Generator& generator_;
  const Rows& texts_;
  const std::vector<std::vector<float>>& want_;
  float within_;
  std::vector<std::size_t> text_of_;  // of each row
};

// A model whose tokens see one token less has other logits, by far more than the tolerance.
void expect_windows_matter(Keys keys, const Rows& texts, const std::vector<std::vector<float>>& want) {
  nlohmann::json& tokens =
      keys[keys.contains("sliding_window_size") ? "sliding_window_size" : "chunk_attn_window_size"];
  tokens = tokens.get<int>() - 1;
  const auto other = wanted_logits(keys, texts);
  float largest = 0;
  for (std::size_t r = 0; r < want.size(); ++r) {
    for (std::size_t i = 0; i < want[r].size(); ++i)
      largest = std::max(largest, std::abs(want[r][i] - other[r][i]));
  }
  EXPECT_GT(largest, 10 * tolerance(keys)) << name_of_model(keys);
}

// Rows of unlike lengths, in long pieces that end anywhere, in short ones, and token by token, some waiting.
TEST(WindowedCache, PiecesOfTextsFarBeyondTheWindow) {
  const Rows texts = random_rows({40, 23, 31});
  for (const Keys& keys : {windowed(), windows_in_turns(), chunked(), in_8_bits(windowed()),
                           in_8_bits(windows_in_turns()), in_8_bits(chunked())}) {
    const auto want = wanted_logits(keys, texts);
    expect_windows_matter(keys, texts, want);
    for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=4 ici_tensor_parallelism=4",
                               "ranks=2 ici_context_parallelism=2", "ranks=3 ici_fsdp_parallelism=3",
                               "ranks=2 ici_pipeline_parallelism=2", "ranks=2 ici_expert_parallelism=2",
                               "device=fenced", "device=cuda_emulated"}) {
      SCOPED_TRACE(name_of_model(keys) + " " + layout);
      with_generator(keys, layout, 3, [&](Generator& generator) {
        TextsInPieces rows(generator, texts, want, tolerance(keys));
        for (const std::vector<std::size_t>& counts : std::vector<std::vector<std::size_t>>{
                 {13, 1, 6}, {0, 2, 1}, {1, 1, 1}, {2, 2, 2}, {2, 0, 2}, {3, 1, 0}, {9, 4, 7}, {1, 3, 0}})
          rows.feed(counts);
        for (int i = 0; i < 9; ++i) rows.feed({1, 1, 1});
      });
    }
  }
}

// A row gives what it has not forgotten: all its tokens, all but the last, and short texts any part.
TEST(WindowedCache, RowsBeginWithWhatIsRemembered) {
  const Rows texts = random_rows({40, 23});
  for (const Keys& keys : {windowed(), windows_in_turns(), chunked(), in_8_bits(windowed())}) {
    const auto want = wanted_logits(keys, texts);
    for (const char* layout :
         {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_pipeline_parallelism=2"}) {
      SCOPED_TRACE(name_of_model(keys) + " " + layout);
      with_generator(keys, layout, 2, [&](Generator& generator) {
        TextsInPieces rows(generator, texts, want, tolerance(keys));
        rows.feed({4, 0});  // nothing is forgotten yet
        rows.begin(1, 0, 2);
        rows.feed({0, 2});
        rows.feed({23, 9});
        EXPECT_FALSE(generator.can_copy_prefix(0, 14));
        EXPECT_FALSE(generator.can_copy_prefix(0, 28));
        EXPECT_FALSE(generator.can_copy_prefix(1, 2));
        EXPECT_TRUE(generator.can_copy_prefix(0, 0));
        rows.begin(1, 0, 27);
        rows.feed({1, 3});
        rows.feed({1, 1});
        rows.begin(1, 0, 28);
        rows.feed({0, 1});
        rows.feed({1, 9});
        rows.begin(0, 0, 29);
        for (int i = 0; i < 5; ++i) {  // two tokens, of which the second is taken back
          rows.feed({2, 1});
          generator.truncate(0, generator.length(0) - 1);
          generator.truncate(1, generator.length(1) - 1);
        }
        rows.begin(0, 0, 0);
        rows.feed({19, 0});
      });
    }
  }
}

// Windows of two widths forget at different times: a row gives what both of them remember, at any length.
TEST(WindowedCache, RowsBeginWithWhatAllWindowsRemember) {
  Keys keys = windowed();
  keys.insert(
      {{"attention_kinds", {{"wide", {{"sliding_window_size", 12}}}, {"narrow", nlohmann::json::object()}}},
       {"layer_kinds", {"wide", "narrow"}}});
  const Rows texts = random_rows({40, 23});
  const auto want = wanted_logits(keys, texts);
  for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2"}) {
    with_generator(keys, layout, 2, [&](Generator& generator) {
      TextsInPieces rows(generator, texts, want, tolerance(keys));
      std::vector<std::int64_t> begun;
      for (std::size_t piece = 18; generator.length(0) < 38; piece = 1) {
        rows.feed({piece, 0});
        for (std::int64_t fewer = 1; fewer < 4; ++fewer) {
          const std::int64_t tokens = generator.length(0) - fewer;
          if (!generator.can_copy_prefix(0, tokens)) continue;
          begun.push_back(fewer);
          rows.begin(1, 0, tokens);
          rows.feed({0, 1});
        }
      }
      EXPECT_GE(std::ranges::count(begun, 1), 20);  // always
      EXPECT_GE(std::ranges::count(begun, 3), 1);
      EXPECT_LE(std::ranges::count(begun, 3), 19);
    });
  }
}

// A generator that forgets nothing begins with any part of a row, and has the memory for it.
TEST(WindowedCache, RowsBeginWithAnythingThatIsNotForgotten) {
  const Rows texts = random_rows({40, 23});
  const Keys keys = windows_in_turns();
  const auto want = wanted_logits(keys, texts);
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 2, kMostTokens, false);
    TextsInPieces rows(generator, texts, want, tolerance(keys));
    const std::int64_t before = context.memory.in_use();
    rows.feed({30, 9});
    EXPECT_EQ(context.memory.in_use() - before, 2 * 2 * kMostTokens * 2 * 2 * 6 * 4);
    rows.begin(1, 0, 14);
    rows.feed({1, 3});
    rows.begin(0, 0, 7);
    rows.feed({1, 1});
  });
}

// After a text of so many tokens and one of a single token, and a token more of each.
std::int64_t bytes_of_windows(const Keys& keys, std::int64_t capacity, std::size_t tokens) {
  return bytes_remembered(keys, capacity,
                          {{{0, std::vector<std::int32_t>(tokens, 1)}, {1, {4}}}, {{0, {1}}, {1, {4}}}});
}

TEST(WindowedCache, HoldsTheWindow) {
  constexpr std::int64_t kTokenBytes = 2 * 2 * 2 * 6 * 4;  // two rows: keys and values, heads, float32
  for (const std::size_t tokens : {3, 200}) {
    for (const std::int64_t capacity : {300, 3000}) {
      EXPECT_EQ(bytes_of_windows(grouped_queries(), capacity, tokens), 2 * capacity * kTokenBytes);
      EXPECT_EQ(bytes_of_windows(windowed(), capacity, tokens), 2 * (5 + 2) * kTokenBytes);
      EXPECT_EQ(bytes_of_windows(windows_in_turns(), capacity, tokens), (5 + 2 + capacity) * kTokenBytes);
      EXPECT_EQ(bytes_of_windows(chunked(), capacity, tokens), (3 + 2 + capacity) * kTokenBytes);
      Keys wide = windowed();
      wide["sliding_window_size"] = 128;
      EXPECT_EQ(bytes_of_windows(wide, capacity, tokens), 2 * (128 + 32) * kTokenBytes);
      EXPECT_EQ(bytes_of_windows(in_8_bits(windowed()), capacity, tokens),
                2 * (5 + 2) * (kTokenBytes / 4 + 2 * 2 * 2 * 4));
    }
  }
}

}  // namespace
}  // namespace switchyard
