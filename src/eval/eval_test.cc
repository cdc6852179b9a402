// Tests that each token is scored once, with the values of the model's own logits, on any layout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "core/rng.h"
#include "engine/session.h"
#include "eval/evaluate.h"

namespace switchyard {
namespace {

TEST(Windows, ScoreEveryTokenOnceWithWhatStandsBeforeIt) {
  int texts = 0;
  for (std::int64_t tokens = 2; tokens < 30; ++tokens) {
    for (std::int64_t window = 1; window < 12; ++window) {
      for (std::int64_t stride = 1; stride <= window; ++stride) {
        SCOPED_TRACE(testing::Message()
                     << tokens << " tokens, windows of " << window << ", stride " << stride);
        std::vector<int> scored(static_cast<std::size_t>(tokens));
        const std::vector<Window> windows = windows_of(tokens, window, stride);
        for (std::size_t w = 0; w < windows.size(); ++w) {
          EXPECT_EQ(windows[w].begin, static_cast<std::int64_t>(w) * stride);
          EXPECT_LE(windows[w].length, window);
          EXPECT_LT(windows[w].first_scored, windows[w].length);
          for (std::int64_t i = windows[w].first_scored; i < windows[w].length; ++i) {
            const std::int64_t token = windows[w].begin + i + 1;
            ASSERT_LT(token, tokens);
            ++scored[static_cast<std::size_t>(token)];
            EXPECT_GE(i + 1, std::min(token, window - stride + 1));
          }
        }
        EXPECT_EQ(scored[0], 0);
        for (std::size_t t = 1; t < scored.size(); ++t) EXPECT_EQ(scored[t], 1) << t;
        ++texts;
      }
    }
  }
  EXPECT_EQ(texts, 28 * 66);
  EXPECT_TRUE(windows_of(1, 4, 2).empty());
  EXPECT_TRUE(windows_of(0, 4, 2).empty());
  EXPECT_EQ(windows_of(8, 4, 3), (std::vector<Window>{{0, 4, 0}, {3, 4, 1}}));
  EXPECT_EQ(windows_of(9, 4, 3), (std::vector<Window>{{0, 4, 0}, {3, 4, 1}, {6, 2, 1}}));
}

TEST(Windows, AreRowsWithPadding) {
  const std::vector<std::int32_t> tokens{10, 11, 12, 13, 14, 15};
  const Batch batch = batch_of_windows(tokens, windows_of(6, 3, 3), 3, 3);
  const auto expect = [](const Tensor& got, const std::vector<std::int32_t>& want) {
    EXPECT_EQ(std::vector<std::int32_t>(got.span<std::int32_t>().begin(), got.span<std::int32_t>().end()),
              want);
  };
  expect(batch.inputs, {10, 11, 12, 13, 14, 0, 0, 0, 0});
  expect(batch.inputs_position, {0, 1, 2, 0, 1, 0, 0, 0, 0});
  expect(batch.inputs_segmentation, {1, 1, 1, 1, 1, 0, 0, 0, 0});
  expect(batch.targets_segmentation, {0, 0, 0, 0, 0, 0, 0, 0, 0});
}

TEST(Score, IsOfTheWholeVocabulary) {
  // Probabilities 1/2, 1/4, 1/8, 1/8 against 1/4, 1/2, 1/8, 1/8; logits have any offset.
  std::vector<float> logits, against;
  for (const double p : {0.5, 0.25, 0.125, 0.125}) logits.push_back(static_cast<float>(std::log(p) + 3));
  for (const double p : {0.25, 0.5, 0.125, 0.125}) against.push_back(static_cast<float>(std::log(p) - 40));
  const TokenScore s = score_token(logits, 2, against);
  EXPECT_NEAR(s.nats, std::log(8), 1e-6);
  EXPECT_NEAR(s.kl, 0.25 * std::log(2), 1e-6);  // 1/2 log 2 - 1/4 log 2
  EXPECT_FALSE(s.same_top);
  const TokenScore alone = score_token(logits, 1, {});
  EXPECT_NEAR(alone.nats, std::log(4), 1e-6);
  EXPECT_EQ(alone.kl, 0);
  const TokenScore same = score_token(logits, 0, logits);
  EXPECT_EQ(same.kl, 0);
  EXPECT_TRUE(same.same_top);
  // The direction counts: KL(against || evaluated).
  std::vector<float> sharp{0, -20}, flat{0, 0};
  EXPECT_NEAR(score_token(sharp, 0, flat).kl, -0.5 * std::log(4) + 10, 1e-4);
  EXPECT_NEAR(score_token(flat, 0, sharp).kl, std::log(2), 1e-4);
  std::vector<float> broken{0, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(score_token(broken, 0, flat).nats));
  EXPECT_TRUE(std::isnan(score_token(broken, 0, flat).kl));
  EXPECT_TRUE(std::isnan(score_token(flat, 0, broken).kl));
}

TEST(Score, Summary) {
  const EvalSummary alone = summarise({{1, 2, 3}, {}, 0}, 9);
  EXPECT_EQ(alone.tokens, 3);
  EXPECT_DOUBLE_EQ(alone.nats_per_token, 2);
  EXPECT_DOUBLE_EQ(alone.perplexity, std::exp(2.0));
  EXPECT_DOUBLE_EQ(alone.bits_per_byte, 6 / std::numbers::ln2 / 9);
  EXPECT_FALSE(alone.against.has_value());
  const EvalSummary both = summarise({{1, 2, 3, 4}, {4, 1, 0, 2}, 3}, 9);
  ASSERT_TRUE(both.against.has_value());
  EXPECT_DOUBLE_EQ(both.against->mean_kl, 1.75);
  EXPECT_DOUBLE_EQ(both.against->median_kl, 1.5);
  EXPECT_NEAR(both.against->p99_kl, 2 + 0.97 * 2, 1e-12);
  EXPECT_DOUBLE_EQ(both.against->same_top, 0.75);
  EXPECT_DOUBLE_EQ(quantile(std::vector<float>{5}, 0.99), 5);
  std::vector<float> hundred;
  for (int i = 0; i <= 100; ++i) hundred.push_back(static_cast<float>(i));
  EXPECT_DOUBLE_EQ(quantile(hundred, 0.99), 99);
  const float none = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(summarise({{1, 2}, {none, 1}, 0}, 9).against->median_kl));
}

using Keys = std::map<std::string, nlohmann::json>;

constexpr std::int64_t kVocabulary = 40, kLength = 8, kStride = 3;

Keys grouped_queries() {
  return {{"vocab_size", kVocabulary}, {"base_emb_dim", 24},
          {"base_mlp_dim", 12},        {"base_moe_mlp_dim", 12},
          {"dtype", "float32"},        {"num_experts", 4},
          {"num_experts_per_tok", 2},  {"init_weights_seed", 3},
          {"max_target_length", 8},    {"decoder_block", "mixtral"},
          {"base_num_query_heads", 4}, {"base_num_decoder_layers", 2},
          {"base_num_kv_heads", 2},    {"head_dim", 6}};
}

Keys tied() {
  Keys keys = grouped_queries();
  keys["logits_via_embedding"] = true;
  keys["final_logits_soft_cap"] = 0.5;
  return keys;
}

std::vector<std::int32_t> random_text(std::int64_t tokens) {
  std::vector<std::int32_t> text;
  for (std::int64_t i = 0; i < tokens; ++i)
    text.push_back(rng_randint(rng_key(5), static_cast<std::uint64_t>(i), 0, kVocabulary));
  return text;
}

// log probabilities of all tokens after text[begin .. end), by the logits of training's
// forward pass over these alone.
std::vector<double> log_probabilities(const Keys& keys, std::span<const std::int32_t> before) {
  std::vector<double> result;
  const Config config = Config::from_map(keys, {});
  const ModelConfig model = model_config(config);
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const NoGrad no_grad(context);
    const Parameters parameters =
        Parameters::create(context, parameter_specs(model), model.init_seed, {}, nullptr);
    const Shape shape{1, static_cast<std::int64_t>(before.size())};
    Batch batch{Tensor::of<std::int32_t>(shape, before), Tensor::zeros(DType::i32, shape),
                Tensor(DType::i32, shape), Tensor(DType::i32, shape), Tensor::zeros(DType::i32, shape)};
    for (std::size_t i = 0; i < before.size(); ++i) {
      batch.inputs_position.span<std::int32_t>()[i] = static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[i] = 1;
      batch.targets_segmentation.span<std::int32_t>()[i] = 1;
    }
    LossOptions options;
    options.keep_logits = true;
    const Tensor logits =
        training_losses(context, model, parameters, place_batch(context, batch), options).logits.tensor();
    const auto last = logits.span<float>().last(static_cast<std::size_t>(kVocabulary));
    double sum = 0;
    for (const float x : last) sum += std::exp(static_cast<double>(x));
    for (const float x : last) result.push_back(x - std::log(sum));
  });
  return result;
}

// What evaluate_text should find, from logits of one token after the other.
TextScores scores_by_hand(const Keys& keys, const Keys* against, std::span<const std::int32_t> text) {
  TextScores scores;
  for (std::int64_t token = 1; token < std::ssize(text); ++token) {
    std::int64_t begin = 0;  // of the first window in which it is a target
    while (token > begin + kLength) begin += kStride;
    const auto before =
        text.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(token - begin));
    const std::vector<double> ours = log_probabilities(keys, before);
    const auto id = static_cast<std::size_t>(text[static_cast<std::size_t>(token)]);
    scores.nats.push_back(static_cast<float>(-ours[id]));
    if (against == nullptr) continue;
    const std::vector<double> theirs = log_probabilities(*against, before);
    double kl = 0;
    for (std::size_t i = 0; i < ours.size(); ++i) kl += std::exp(theirs[i]) * (theirs[i] - ours[i]);
    scores.kl.push_back(static_cast<float>(kl));
    const auto top = [](const std::vector<double>& p) {
      return std::max_element(p.begin(), p.end()) - p.begin();
    };
    scores.same_top += top(ours) == top(theirs);
  }
  return scores;
}

TextScores scores_on(const Keys& keys, const Keys* against, std::span<const std::int32_t> text,
                     const std::string& layout, std::int64_t rows, std::int64_t logits_bytes) {
  std::vector<std::string> settings;
  for (std::size_t begin = 0; begin < layout.size();) {
    const std::size_t end = std::min(layout.find(' ', begin), layout.size());
    settings.push_back(layout.substr(begin, end - begin));
    begin = end + 1;
  }
  const Config config = Config::from_map(keys, settings);
  const auto model_of = [&](const Keys& k) { return model_config(Config::from_map(k, settings)); };
  const ModelConfig model = model_of(keys), other = model_of(against == nullptr ? keys : *against);
  TextScores scores;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const auto create = [&](const ModelConfig& m) {
      return Parameters::create(context, stage_specs(parameter_specs(m), context.stage, m), m.init_seed, {},
                                nullptr);
    };
    const Parameters parameters = create(model), others = create(other);
    std::vector<ScoredModel> models{{model, parameters}};
    if (against != nullptr) models.push_back({other, others});
    EvalText request{text, windows_of(std::ssize(text), kLength, kStride), rows, logits_bytes};
    std::int64_t done = 0;
    const TextScores own = evaluate_text(context, models, request, [&](std::int64_t windows, double nats) {
      EXPECT_GT(windows, done);
      EXPECT_GT(nats, 0);
      done = windows;
    });
    EXPECT_EQ(done, std::ssize(request.windows));
    if (context.comm->rank() == context.comm->size() - 1) scores = own;  // any rank has them
  });
  return scores;
}

void expect_near(const TextScores& got, const TextScores& want) {
  ASSERT_EQ(got.nats.size(), want.nats.size());
  ASSERT_EQ(got.kl.size(), want.kl.size());
  for (std::size_t i = 0; i < want.nats.size(); ++i) ASSERT_NEAR(got.nats[i], want.nats[i], 2e-5) << i;
  for (std::size_t i = 0; i < want.kl.size(); ++i) ASSERT_NEAR(got.kl[i], want.kl[i], 2e-5) << i;
  EXPECT_EQ(got.same_top, want.same_top);
}

constexpr std::int64_t kAllLogits = std::int64_t{1} << 28;

TEST(Evaluate, ScoresAreThoseOfTheLogitsOnAnyLayout) {
  const std::vector<std::int32_t> text = random_text(27);
  Keys other = grouped_queries();
  other["init_weights_seed"] = 4;
  const TextScores want = scores_by_hand(grouped_queries(), &other, text);
  ASSERT_EQ(want.nats.size(), 26u);
  EXPECT_GT(summarise(want, 1).against->median_kl, 1e-3);  // else anything near 0 would pass
  for (const char* layout :
       {"", "device=fenced", "ranks=2 ici_tensor_parallelism=2", "ranks=4 ici_tensor_parallelism=4",
        "ranks=2 ici_context_parallelism=2", "ranks=4 ici_context_parallelism=2 ici_tensor_parallelism=2",
        "ranks=2 ici_expert_parallelism=2", "ranks=4 ici_expert_parallelism=4 use_ring_of_experts=true",
        "ranks=3 ici_fsdp_parallelism=3", "ranks=2 ici_pipeline_parallelism=2",
        "ranks=4 ici_pipeline_parallelism=2 ici_tensor_parallelism=2",
        "sparse_matmul=false num_moe_token_chunks=2"}) {
    for (const std::int64_t rows : {1, 4, 12}) {
      for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{3 * 4 * 2 * kVocabulary}, kAllLogits}) {
        SCOPED_TRACE(testing::Message() << layout << ", " << rows << " rows, " << bytes << " bytes");
        expect_near(scores_on(grouped_queries(), &other, text, layout, rows, bytes), want);
      }
    }
  }
}

TEST(Evaluate, AModelAloneAndOneWithATiedCappedHead) {
  const std::vector<std::int32_t> text = random_text(13);
  for (const Keys& keys : {grouped_queries(), tied()}) {
    const TextScores want = scores_by_hand(keys, nullptr, text);
    for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_fsdp_parallelism=2",
                               "ranks=2 ici_pipeline_parallelism=2"})
      expect_near(scores_on(keys, nullptr, text, layout, 2, kAllLogits), want);
  }
}

TEST(Evaluate, AModelIsItself) {
  const std::vector<std::int32_t> text = random_text(20);
  const Keys keys = grouped_queries();
  for (const char* layout : {"", "ranks=4 ici_tensor_parallelism=2 ici_expert_parallelism=2"}) {
    const EvalSummary summary = summarise(scores_on(keys, &keys, text, layout, 3, kAllLogits), 20);
    ASSERT_TRUE(summary.against.has_value());
    EXPECT_EQ(summary.tokens, 19);
    EXPECT_EQ(summary.against->mean_kl, 0);
    EXPECT_EQ(summary.against->p99_kl, 0);
    EXPECT_EQ(summary.against->same_top, 1);
  }
}

}  // namespace
}  // namespace switchyard
