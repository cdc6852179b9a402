// Tests the engine's losses, gradients and steps as a calling program uses them.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "engine/engine_testing.h"

namespace switchyard {
namespace {

const std::vector<Arguments>& meshes() {
  static const std::vector<Arguments> all{
      {},
      kMesh,
      {"ranks=2", "ici_pipeline_parallelism=2", "num_pipeline_microbatches=2", "per_device_batch_size=2"}};
  return all;
}

void expect_equal_weights(Engine& a, Engine& b) {
  for (const ParameterInfo& p : a.parameters())
    EXPECT_EQ(a.read_parameter(p.name), b.read_parameter(p.name)) << p.name;
}

TEST(EngineTraining, TwoHalvesAreAStep) {
  for (const Arguments& mesh : meshes()) {
    Engine whole = open(mesh), halves = open(mesh);
    for (int step = 0; step < 3; ++step) {
      const TrainBatch batch{batch_of(4, 16)};
      const TrainStep a = whole.train_step(batch);
      const Loss loss = halves.forward_backward(batch);
      const TrainStep b = halves.optimizer_step();
      EXPECT_EQ(loss.loss, a.loss);
      EXPECT_EQ(loss.cross_entropy, a.cross_entropy);
      EXPECT_EQ(loss.balance_loss, a.balance_loss);
      EXPECT_EQ(loss.targets, 60);
      EXPECT_EQ(b.loss, a.loss);
      EXPECT_EQ(b.gradient_norm, a.gradient_norm);
      EXPECT_EQ(b.step, step);
      EXPECT_EQ(b.learning_rate, a.learning_rate);
      expect_equal_weights(whole, halves);
    }
  }
}

TEST(EngineTraining, GradientsAddUp) {
  for (const Arguments& mesh : meshes()) {
    Engine once = open(mesh), twice = open(mesh);
    const TrainBatch batch{batch_of(4, 16)};
    once.forward_backward(batch);
    twice.forward_backward(batch);
    twice.forward_backward(batch);
    double largest = 0;
    for (const ParameterInfo& p : once.parameters()) {
      const std::vector<float> a = once.read_gradient(p.name), b = twice.read_gradient(p.name);
      for (std::size_t i = 0; i < a.size(); ++i) {
        ASSERT_NEAR(b[i], 2 * a[i], 1e-5) << p.name;
        largest = std::max(largest, std::abs(static_cast<double>(a[i])));
      }
    }
    EXPECT_GT(largest, 1e-3);
    const TrainStep a = once.optimizer_step(), b = twice.optimizer_step();
    EXPECT_NEAR(b.gradient_norm, 2 * a.gradient_norm, 1e-4);
    EXPECT_NEAR(b.loss, 2 * a.loss, 1e-5);
  }
}

TEST(EngineTraining, GradientsAreTheSameOnAnyMesh) {
  Engine one = open(), four = open(kMesh);
  TrainBatch batch{batch_of(4, 16)};
  for (std::size_t i = 0; i < 64; ++i) batch.weights.push_back(static_cast<float>(i % 5) - 1.5f);
  EXPECT_NEAR(one.forward_backward(batch).loss, four.forward_backward(batch).loss, 1e-5);
  double norm = 0;
  for (const ParameterInfo& p : one.parameters()) {
    const std::vector<float> a = one.read_gradient(p.name), b = four.read_gradient(p.name);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(a[i], b[i], 1e-5) << p.name;
      norm += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    }
  }
  EXPECT_NEAR(one.optimizer_step().gradient_norm, std::sqrt(norm), 1e-4);
}

TEST(EngineTraining, WeightsOfTargetsAreFactorsOfTheirLosses) {
  Engine engine = open({"load_balance_loss_weight=0"});
  TrainBatch batch{batch_of(4, 16)};
  const std::vector<float> log_probs = engine.token_log_probs(batch);
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    batch.weights.push_back(i % 3 == 0 ? 0.0f : static_cast<float>(i % 7) - 2.5f);
    if (i % 16 == 15 || i % 3 == 0) continue;
    sum -= static_cast<double>(batch.weights[i]) * static_cast<double>(log_probs[i]);
    count += 1;
  }
  const Loss loss = engine.forward_backward(batch);
  EXPECT_EQ(loss.targets, count);
  EXPECT_NEAR(loss.cross_entropy, sum / count, 1e-5);
  const Loss alone = engine.loss(batch);
  EXPECT_EQ(alone.targets, count);
  EXPECT_NEAR(alone.cross_entropy, loss.cross_entropy, 1e-5);
  // Weights of 1 are none, and weights of 0 leave targets out.
  Engine masked = open(), ones = open(), plain = open();
  TrainBatch without{batch.inputs};
  EXPECT_EQ(plain.train_step(without).loss, [&] {
    TrainBatch with = without;
    with.weights.assign(64, 1);
    return ones.train_step(with).loss;
  }());
  expect_equal_weights(plain, ones);
  for (std::size_t i = 0; i < 64; ++i)
    without.targets.push_back(i % 16 == 15 || i % 3 == 0 ? -1 : without.inputs.tokens[i + 1]);
  for (float& weight : batch.weights) weight = weight == 0 ? 0.0f : 1.0f;
  Engine left_out = open();
  EXPECT_EQ(masked.train_step(batch).loss, left_out.train_step(without).loss);
  expect_equal_weights(masked, left_out);
}

// A GPU records a step as a graph, which has no place for weights.
TEST(EngineTraining, WeightsCountInAWholeStepOfAGpu) {
  TrainBatch batch{batch_of(4, 16)};
  for (std::size_t i = 0; i < 64; ++i) batch.weights.push_back(static_cast<float>(i % 5) - 1.5f);
  Engine here = open(), there = open({"device=cuda_emulated"});
  there.train_step({batch.inputs});
  here.train_step({batch.inputs});
  const TrainStep a = here.train_step(batch), b = there.train_step(batch);
  EXPECT_NEAR(a.cross_entropy, b.cross_entropy, 1e-4);
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-3);
  EXPECT_GT(std::abs(a.cross_entropy - here.train_step({batch.inputs}).cross_entropy), 1);
}

TEST(EngineTraining, LogProbsAreThoseOfTheLogits) {
  for (const Arguments& mesh : meshes()) {
    Engine engine = open(mesh);
    const TokenBatch tokens = batch_of(4, 16);
    const Logits logits = engine.forward(tokens);
    std::vector<std::vector<std::int32_t>> texts;
    for (std::size_t row = 0; row < 4; ++row)
      texts.emplace_back(&tokens.tokens[row * 16], &tokens.tokens[row * 16] + 16);
    const std::vector<Score> scores = engine.score(texts);
    ASSERT_EQ(scores.size(), 4u);
    const std::vector<float> log_probs = engine.token_log_probs({tokens});
    ASSERT_EQ(log_probs.size(), 64u);
    for (std::size_t i = 0; i < 64; ++i) {
      if (i % 16 == 15) {
        EXPECT_EQ(log_probs[i], 0);
        continue;
      }
      double sum = 0;
      for (std::size_t v = 0; v < 64; ++v) sum += std::exp(static_cast<double>(logits.values[i * 64 + v]));
      const auto target = static_cast<std::size_t>(tokens.tokens[i + 1]);
      EXPECT_NEAR(log_probs[i], logits.values[i * 64 + target] - std::log(sum), 2e-5);
      const Score& score = scores[i / 16];
      ASSERT_EQ(score.log_probs.size(), 15u);
      EXPECT_NEAR(score.log_probs[i % 16], static_cast<double>(log_probs[i]), 2e-5);
      const auto row = logits.values.begin() + static_cast<std::ptrdiff_t>(i * 64);
      EXPECT_EQ(score.most_probable.at(i % 16), std::max_element(row, row + 64) - row);
    }
    // Rated from a token on.
    std::vector<std::vector<std::int32_t>> alike(5, texts[0]);
    const std::vector<std::int64_t> from{10, 1, 15, 10, 2};
    const std::vector<Score> parts = engine.score(alike, from);
    for (std::size_t n = 0; n < 5; ++n) {
      const auto skipped = static_cast<std::size_t>(from[n]) - 1;
      ASSERT_EQ(parts.at(n).log_probs.size(), 15 - skipped);
      for (std::size_t i = skipped; i < 15; ++i) {
        EXPECT_NEAR(parts[n].log_probs[i - skipped], scores[0].log_probs[i], 2e-5);
        EXPECT_EQ(parts[n].most_probable[i - skipped], scores[0].most_probable[i]);
      }
    }
    expect_error([&] { engine.score(texts, {1}); }, "expected a first token for each of 4 texts, got 1");
    expect_error([&] { engine.score({texts[0]}, {16}); }, "expected one from 1 to 15");
  }
}

TEST(EngineTraining, DocumentsOfARowDoNotSeeEachOther) {
  Engine engine = open();
  const TokenBatch whole = batch_of(2, 8);
  TrainBatch packed{{1, 16, whole.tokens}};
  packed.segments.assign(16, 1);
  std::fill(packed.segments.begin() + 8, packed.segments.end(), 2);
  const std::vector<float> apart = engine.token_log_probs({whole}), together = engine.token_log_probs(packed);
  for (std::size_t i = 0; i < 16; ++i) EXPECT_NEAR(apart[i], together[i], 1e-5) << i;
  packed.positions.resize(16);
  std::iota(packed.positions.begin(), packed.positions.end(), 0);  // the second document begins at 8
  const std::vector<float> counted_on = engine.token_log_probs(packed);
  for (std::size_t i = 0; i < 16; ++i)
    EXPECT_NEAR(counted_on[i], apart[i], 1e-4) << i;  // rotations are relative
}

// Keys and values of latent attention are made of weights once, for all texts.
TEST(EngineTraining, TextsAreMadeWithTheWeightsOfTheirTime) {
  const Arguments keys{"model_name=deepseek3-tiny",
                       "override_model_config=true",
                       "vocab_size=64",
                       "max_target_length=16",
                       "dtype=float32",
                       "per_device_batch_size=4",
                       "learning_rate=0.05",
                       "warmup_steps_fraction=0",
                       "steps=10"};
  Engine wrote = Engine::open(Settings::parse(keys)), did_not = Engine::open(Settings::parse(keys));
  const auto text = [](Engine& engine) {
    return engine.complete({{1, 2, 3}}, {.most_tokens = 8, .ends_by_model = false}).at(0).tokens;
  };
  const std::vector<std::int32_t> before = text(wrote);
  for (Engine* const engine : {&wrote, &did_not}) {
    for (int step = 0; step < 3; ++step) engine->train_step({batch_of(4, 16)});
  }
  EXPECT_NE(text(wrote), before);
  EXPECT_EQ(text(wrote), text(did_not));
  Engine third = Engine::open(Settings::parse(keys));
  EXPECT_EQ(text(third), before);
  for (const ParameterInfo& p : wrote.parameters()) third.assign(p.name, wrote.read_parameter(p.name));
  EXPECT_EQ(text(third), text(wrote));
}

TEST(EngineTraining, AssignsAndLoadsWeightsOnAnyMesh) {
  const std::string folder = testing::TempDir() + "weights_to_load";
  std::filesystem::remove_all(folder);
  Engine trained = open();
  trained.train_step({batch_of(4, 16)});
  trained.save(folder);
  for (const Arguments& mesh : meshes()) {
    Engine assigned = open(mesh), loaded = open(mesh);
    for (const ParameterInfo& p : trained.parameters())
      assigned.assign(p.name, trained.read_parameter(p.name));
    expect_equal_weights(assigned, trained);
    loaded.load(folder);
    expect_equal_weights(loaded, trained);
  }
  Engine other = open({"base_moe_mlp_dim=32", "base_mlp_dim=32"});
  const std::vector<float> before = other.read_parameter("layers.0.moe.wi_0");
  EXPECT_THROW(other.load(folder), Error);
  EXPECT_THROW(other.load(folder + "/nothing"), Error);
  EXPECT_EQ(other.read_parameter("layers.0.moe.wi_0"), before);
  expect_error([&] { other.assign("layers.0.moe.wi_0", std::vector<float>(3)); }, "3 values for");
  expect_error([&] { other.assign("layers.0.moe.wi_2", std::vector<float>(3)); }, "layers.0.moe.wi_");
  std::filesystem::remove_all(folder);
}

TEST(EngineTraining, RunsAsTheCommandDoes) {
  const std::string folder = testing::TempDir() + "runs_of_engine";
  for (const Arguments& mesh : meshes()) {
    std::filesystem::remove_all(folder);
    Arguments keys{"dataset_type=synthetic",    "base_output_directory=" + folder, "run_name=whole",
                   "enable_checkpointing=true", "enable_tensorboard=false",        "steps=4"};
    keys.insert(keys.end(), mesh.begin(), mesh.end());
    std::vector<double> losses;
    const TrainCalls calls{.after_step = [&](const std::string& metrics) {
      const std::string_view key = "\"learning/loss\":";
      losses.push_back(std::stod(metrics.substr(metrics.find(key) + key.size())));
      return true;
    }};
    Engine whole = open(keys);
    EXPECT_EQ(whole.train("", -1, calls).steps, 4);
    EXPECT_EQ(losses.size(), 4u);
    EXPECT_TRUE(std::filesystem::exists(folder + "/whole/checkpoints/4"));
    EXPECT_TRUE(std::filesystem::exists(folder + "/whole/summary.json"));
    // The callback ends the run, and another engine goes on from the run's checkpoint.
    keys[2] = "run_name=parts";
    Engine parts = open(keys);
    int heard = 0;
    const TrainedRun first =
        parts.train("", -1, {.after_step = [&](const std::string&) { return ++heard < 2; }});
    EXPECT_EQ(first.steps, 2);
    EXPECT_TRUE(first.stopped);
    Engine later = open(keys);
    EXPECT_EQ(later.train().steps, 4);
    expect_equal_weights(later, whole);
    EXPECT_EQ(parts.train().steps, 4);  // the first one goes on, too
    expect_equal_weights(parts, whole);
    EXPECT_EQ(parts.train_step({batch_of(4, 16)}).step, 4);
    const auto thrower = [](const std::string&) -> bool { throw std::runtime_error("enough"); };
    Engine third = open(keys);
    EXPECT_THROW(third.train("", 9, {.after_step = thrower}), std::runtime_error);
    EXPECT_EQ(third.train_step({batch_of(4, 16)}).step, 5);
    expect_error([&] { open(keys).train("/nothing", 20); }, "dataset_type=synthetic reads none");
  }
  std::filesystem::remove_all(folder);
}

TEST(EngineTraining, RefusesWhatItDoesNotTrainOn) {
  Engine engine = open();
  TrainBatch batch{batch_of(4, 16)};
  expect_error([&] { engine.optimizer_step(); }, "expected a forward_backward()");
  expect_error([&] { engine.read_gradient("layers.0.moe.gate"); }, "expected a forward_backward()");
  batch.weights.assign(3, 1);
  expect_error([&] { engine.forward_backward(batch); }, "3 weights, expected one for each of 64 tokens");
  batch.weights.assign(64, std::nanf(""));
  expect_error([&] { engine.forward_backward(batch); }, "weight nan: expected a number");
  batch.weights.clear();
  batch.segments.assign(64, -1);
  expect_error([&] { engine.token_log_probs(batch); }, "segment -1: expected 0 or more");
  batch.segments.clear();
  engine.forward_backward(batch);
  expect_error([&] { engine.train_step(batch); }, "wait for optimizer_step()");
  expect_error([&] { engine.optimizer_step(-1.0); }, "learning_rate=-1");
  engine.drop_gradients();
  EXPECT_EQ(engine.train_step(batch).step, 0);
  engine.forward_backward({batch_of(3, 5)});  // any number of sequences
  EXPECT_EQ(engine.optimizer_step(0.0).learning_rate, 0);
}

}  // namespace
}  // namespace switchyard
