// What a generator gives piece by piece is what the model gives for all tokens at once, on any layout; and
// draws follow their distribution.
#include "generate/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/rng.h"
#include "generate/token_text.h"
#include "ops/reshard.h"
#include "train/session.h"

namespace switchyard {
namespace {

using Keys = std::map<std::string, nlohmann::json>;
using Rows = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t kVocabulary = 40;

Keys small_model() {
  return {{"vocab_size", kVocabulary}, {"base_emb_dim", 24},     {"base_mlp_dim", 20},
          {"base_moe_mlp_dim", 12},    {"dtype", "float32"},     {"num_experts", 4},
          {"num_experts_per_tok", 2},  {"init_weights_seed", 3}, {"max_target_length", 8}};
}

Keys grouped_queries() {
  Keys keys = small_model();
  keys["base_mlp_dim"] = keys["base_moe_mlp_dim"];
  keys.insert({{"decoder_block", "mixtral"},
               {"base_num_decoder_layers", 2},
               {"base_num_query_heads", 4},
               {"base_num_kv_heads", 2},
               {"head_dim", 6}});
  return keys;
}

Keys latent() {
  Keys keys = small_model();
  keys.insert({{"decoder_block", "deepseek"},
               {"base_num_decoder_layers", 3},
               {"first_num_dense_layers", 1},
               {"base_num_query_heads", 4},
               {"base_num_kv_heads", 4},
               {"attention_type", "mla"},
               {"q_lora_rank", 10},
               {"kv_lora_rank", 14},
               {"qk_nope_head_dim", 6},
               {"qk_rope_head_dim", 4},
               {"v_head_dim", 8},
               {"routed_score_func", "sigmoid"},
               {"routed_bias", true},
               {"shared_experts", 1},
               {"norm_topk_prob", true},
               {"rope_type", "default"}});
  return keys;
}

Rows random_rows(const std::vector<std::int64_t>& lengths) {
  Rows rows;
  std::uint64_t at = 0;
  for (const std::int64_t length : lengths) {
    rows.emplace_back();
    for (std::int64_t i = 0; i < length; ++i)
      rows.back().push_back(rng_randint(rng_key(11), at++, 0, static_cast<std::int32_t>(kVocabulary)));
  }
  return rows;
}

// The model's logits for the next token of each row, computed for the whole rows at once on one rank.
std::vector<std::vector<float>> logits_at_once(const Keys& keys, const Rows& rows) {
  std::vector<std::vector<float>> all;
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const NoGrad no_grad(context);
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    for (const auto& row : rows) {
      const Shape shape{1, static_cast<std::int64_t>(row.size())};
      Batch batch{Tensor::of<std::int32_t>(shape, row), Tensor(DType::i32, shape), Tensor(DType::i32, shape),
                  Tensor(DType::i32, shape), Tensor(DType::i32, shape)};
      for (std::size_t i = 0; i < row.size(); ++i) {
        batch.targets.span<std::int32_t>()[i] = 0;
        batch.inputs_position.span<std::int32_t>()[i] = static_cast<std::int32_t>(i);
        batch.inputs_segmentation.span<std::int32_t>()[i] = 1;
        batch.targets_segmentation.span<std::int32_t>()[i] = 1;
      }
      ForwardOptions options;
      options.keep_logits = true;
      const Tensor logits =
          forward(context, model, parameters, place_batch(context, batch), options).logits.tensor();
      const auto last = logits.span<float>().last(static_cast<std::size_t>(kVocabulary));
      all.emplace_back(last.begin(), last.end());
    }
  });
  return all;
}

constexpr std::size_t kAnew = 99;  // in place of a number of tokens: the row is forgotten

// The rows in pieces of the given numbers of tokens; every piece's logits are compared.
void expect_same_in_pieces(const Keys& keys, const std::string& layout, const Rows& rows,
                           const std::vector<std::vector<std::size_t>>& pieces) {
  SCOPED_TRACE(layout);
  std::vector<std::string> settings;
  for (std::size_t begin = 0; begin < layout.size();) {
    const std::size_t end = std::min(layout.find(' ', begin), layout.size());
    settings.push_back(layout.substr(begin, end - begin));
    begin = end + 1;
  }
  const Config config = Config::from_map(keys, settings);
  const ModelConfig model = model_config(config);
  const Mesh mesh = mesh_from_config(config);
  run_session(config, mesh, [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, static_cast<std::int64_t>(rows.size()), 12);
    std::vector<std::size_t> fed(rows.size(), 0);
    for (const auto& counts : pieces) {
      std::vector<RowTokens> piece;
      Rows so_far;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t r = counts.size() - 1 - i;  // in another order than the rows'
        if (counts[r] == kAnew) {
          generator.forget(r);
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
      const auto want = logits_at_once(keys, so_far);
      for (std::size_t i = 0; i < piece.size(); ++i) {
        EXPECT_EQ(generator.length(piece[i].row), static_cast<std::int64_t>(fed[piece[i].row]));
        for (std::size_t v = 0; v < want[i].size(); ++v)
          ASSERT_NEAR(got.span<float>()[i * want[i].size() + v], want[i][v], 2e-5) << "row " << piece[i].row;
      }
    }
  });
}

constexpr const char* kLayouts[] = {"",
                                    "ranks=2 ici_tensor_parallelism=2",
                                    "ranks=4 ici_tensor_parallelism=4",
                                    "ranks=2 ici_context_parallelism=2",
                                    "ranks=2 ici_expert_parallelism=2",
                                    "ranks=3 ici_fsdp_parallelism=3",
                                    "ranks=2 ici_pipeline_parallelism=2",
                                    "ranks=2 ici_expert_parallelism=2 use_ring_of_experts=true",
                                    "sparse_matmul=false num_moe_token_chunks=2"};

TEST(Generator, PiecesOfRowsOfAnyLength) {
  const Rows rows = random_rows({8, 5, 7});
  for (const char* layout : kLayouts) {
    expect_same_in_pieces(grouped_queries(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
    expect_same_in_pieces(latent(), layout, rows, {{4, 1, 3}, {1, 1, 1}, {2, 2, 1}, {1, 1, 2}});
  }
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

// Rows that come, pause, and give way to others, where the mesh splits them and where it cannot.
TEST(Generator, SomeRowsAtATime) {
  const Rows rows = random_rows({8, 5, 7, 6});
  const std::vector<std::vector<std::size_t>> pieces{
      {0, 3, 0, 0},     {2, 0, 0, 0}, {1, 1, 0, 1}, {0, 0, 4, 0},     {3, kAnew, 0, 2},
      {kAnew, 2, 1, 0}, {0, 1, 0, 0}, {5, 1, 2, 3}, {kAnew, 0, 0, 0}, {1, 0, 0, 0}};
  for (const char* layout : kLayouts) {
    expect_same_in_pieces(grouped_queries(), layout, rows, pieces);
    expect_same_in_pieces(latent(), layout, rows, pieces);
  }
  for (const char* layout :
       {"ranks=2 ici_fsdp_parallelism=2", "ranks=4 ici_fsdp_parallelism=4",
        "ranks=4 ici_data_parallelism=2 ici_expert_parallelism=2", "ranks=8 ici_fsdp_parallelism=8"}) {
    expect_same_in_pieces(grouped_queries(), layout, rows, pieces);
    expect_same_in_pieces(latent(), layout, rows, pieces);
  }
}

// A row that begins with another one's tokens goes on as if it had been fed them.
TEST(Generator, RowsBeginWithOthers) {
  const Rows rows = random_rows({7});
  for (const Keys& keys : {grouped_queries(), latent()}) {
    const Config config = Config::from_map(keys, {});
    const ModelConfig model = model_config(config);
    const auto want = logits_at_once(keys, rows);
    run_session(config, mesh_from_config(config), [&](Context& context) {
      const Parameters parameters =
          Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
      Generator generator(context, model, parameters, 3, 12);
      const auto part = [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        return std::vector<std::int32_t>(rows[0].begin() + begin, rows[0].begin() + end);
      };
      const auto expect_last = [&](const RowTokens& fed) {
        const Tensor got = generator.feed(std::span(&fed, 1));
        for (std::size_t v = 0; v < want[0].size(); ++v) ASSERT_NEAR(got.span<float>()[v], want[0][v], 2e-5);
      };
      expect_last({1, part(0, 7)});
      generator.begin(2, 1, 5);
      EXPECT_EQ(generator.length(2), 5);
      expect_last({2, part(5, 7)});
      generator.begin(1, 1, 6);  // its own
      expect_last({1, part(6, 7)});
      generator.begin(0, 2, 0);
      expect_last({0, part(0, 7)});
    });
  }
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
      EXPECT_EQ(seen, g.rows[0].tokens);
      for (const GeneratedRow& row : g.rows) EXPECT_EQ(row.tokens.size(), row.log_probs.size());
      return g;
    };
    const GenerateOptions free{.most_tokens = 6, .log_probs = true, .vocab = kVocabulary};
    const Generated whole = made(free);
    ASSERT_EQ(whole.rows[0].tokens.size(), 6u);
    GenerateOptions ending = free;
    const std::int32_t end = whole.rows[0].tokens[2];
    // An id that never comes, the end, and one that comes after it where that is another one.
    ending.ends = {kVocabulary + 5, end, whole.rows[0].tokens[4]};
    const auto is_end = [&](std::int32_t token) {
      return std::find(ending.ends.begin(), ending.ends.end(), token) != ending.ends.end();
    };
    const Generated ended = made(ending);
    const auto at = std::find_if(whole.rows[0].tokens.begin(), whole.rows[0].tokens.end(),
                                 [&](std::int32_t t) { return is_end(t); });
    EXPECT_EQ(ended.rows[0].tokens, std::vector<std::int32_t>(whole.rows[0].tokens.begin(), at + 1));
    EXPECT_TRUE(ended.rows[0].ended);
    // The other row goes on as if it were alone, up to an end of its own.
    const auto& tokens = ended.rows[1].tokens;
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.rows[1].tokens.begin()));
    EXPECT_TRUE(tokens.size() == 6 || is_end(tokens.back()));
    for (const std::int64_t piece : {1, 2, 3}) {
      GenerateOptions in_pieces = free;
      in_pieces.prompt_piece = piece;
      EXPECT_EQ(made(in_pieces).rows[1].tokens, whole.rows[1].tokens);
    }
    GenerateOptions narrow = free;
    narrow.vocab = 3;
    const Generated few = made(narrow);
    for (const std::int32_t token : few.rows[0].tokens) EXPECT_LT(token, 3);
    EXPECT_EQ(made({.most_tokens = 0, .vocab = kVocabulary}).rows[0].tokens.size(), 0u);
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
