// Tests the engine as a calling program uses it.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <thread>

#include "engine/engine_testing.h"

namespace switchyard {
namespace {

void expect_near(const std::vector<float>& a, const std::vector<float>& b, float most) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], most) << i;
}

TEST(Engine, OneAnswerOnAnyMesh) {
  Engine one = open(), four = open(kMesh);  // two engines in one process
  EXPECT_EQ(four.ranks(), 4);
  const TokenBatch batch = batch_of(4, 6);
  const Logits whole = one.forward(batch);
  EXPECT_EQ(whole.values.size(), 4u * 6 * 64);
  expect_near(four.forward(batch).values, whole.values, 1e-5f);
  const Logits last = one.forward(batch, Positions::last);
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::int64_t v = 0; v < 64; ++v)
      ASSERT_NEAR(last.values[static_cast<std::size_t>(row * 64 + v)],
                  whole.values[static_cast<std::size_t>((row * 6 + 5) * 64 + v)], 1e-5f);
  }
  for (const ParameterInfo& p : four.parameters())
    EXPECT_EQ(four.read_parameter(p.name), one.read_parameter(p.name)) << p.name;
}

TEST(Engine, ShowsTheShardsOfAParameter) {
  Engine four = open(kMesh);
  const ParameterView experts = four.parameter("layers.1.moe.wi_0");
  EXPECT_EQ(experts.shape, (std::vector<std::int64_t>{4, 32, 24}));
  EXPECT_EQ(experts.axes[0], "expert");
  EXPECT_EQ(experts.block[0], 2);
  ASSERT_EQ(experts.shards.size(), 4u);
  const std::vector<float> whole = four.read_parameter(experts.name);
  std::vector<int> covered(whole.size());
  for (const Shard& shard : experts.shards) {
    ASSERT_EQ(shard.shape, experts.block);
    const auto* values = static_cast<const float*>(shard.data);
    std::size_t at = 0;
    for (std::int64_t e = 0; e < shard.shape[0]; ++e) {
      for (std::int64_t i = 0; i < shard.shape[1]; ++i) {
        for (std::int64_t o = 0; o < shard.shape[2]; ++o, ++at) {
          const auto to = static_cast<std::size_t>(((shard.offset[0] + e) * 32 + shard.offset[1] + i) * 24 +
                                                   shard.offset[2] + o);
          ASSERT_EQ(values[at], whole[to]);
          ++covered[to];
        }
      }
    }
    EXPECT_EQ(shard.bytes, at * sizeof(float));
  }
  EXPECT_EQ(covered, std::vector<int>(whole.size(), 1));
}

TEST(Engine, Trains) {
  Engine one = open(), four = open(kMesh);
  const TrainBatch batch{batch_of(4, 16)};
  double before = 0;
  for (int step = 0; step < 5; ++step) {
    const TrainStep a = one.train_step(batch), b = four.train_step(batch);
    EXPECT_EQ(a.step, step);
    EXPECT_NEAR(a.loss, b.loss, 1e-5);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-4);
    EXPECT_EQ(a.targets, 4 * 15);
    if (step > 1) {
      EXPECT_LT(a.loss, before);
    }
    before = a.loss;
  }
  expect_near(one.forward(batch.inputs).values, four.forward(batch.inputs).values, 1e-3f);
  TrainBatch masked = batch;  // one target only
  masked.targets.assign(masked.inputs.tokens.size(), -1);
  masked.targets[3] = 5;
  EXPECT_EQ(one.train_step(masked).targets, 1);
}

TEST(Engine, GeneratesTheMostProbableTokens) {
  Engine engine = open();
  std::vector<std::int32_t> text{3, 1, 4};
  for (const std::int32_t token : engine.generate(text, {.most_tokens = 6})) text.push_back(token);
  ASSERT_EQ(text.size(), 9u);
  for (std::size_t at = 3; at < text.size(); ++at) {
    const Logits logits = engine.forward(
        {1, static_cast<std::int64_t>(at), {text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at)}},
        Positions::last);
    EXPECT_EQ(std::ranges::max_element(logits.values) - logits.values.begin(), text[at]);
  }
  std::vector<std::int32_t> on_mesh{3, 1, 4};
  Engine four = open(kMesh);
  for (const std::int32_t token : four.generate(on_mesh, {.most_tokens = 6})) on_mesh.push_back(token);
  EXPECT_EQ(on_mesh, text);
  // The context ends a text; an end token does, too, and is its last.
  int tokens = 0;
  for ([[maybe_unused]] const std::int32_t token : engine.generate({1}, {.most_tokens = 1000})) ++tokens;
  EXPECT_EQ(tokens, 15);
  TokenStream ended = engine.generate({3, 1, 4}, {.ends = {text[4]}});
  EXPECT_EQ(ended.next(), text[3]);
  if (text[3] != text[4]) {
    EXPECT_EQ(ended.next(), text[4]);
  }
  EXPECT_EQ(ended.next(), std::nullopt);
}

// A text is continued with the weights of its moment, also one that was begun before a training step. Latent
// attention keeps merged weights between calls, and every attention keeps keys.
TEST(Engine, TextsFollowTheTraining) {
  const Arguments latent{"decoder_block=deepseek",  "attention_type=mla",  "first_num_dense_layers=1",
                         "kv_lora_rank=8",          "q_lora_rank=0",       "qk_nope_head_dim=8",
                         "qk_rope_head_dim=4",      "v_head_dim=8",        "learning_rate=0.2",
                         "warmup_steps_fraction=0", "max_target_length=16"},
      grouped{"learning_rate=0.2", "warmup_steps_fraction=0"};
  const auto next_of = [](Engine& engine, const std::vector<std::int32_t>& text) {
    const Logits logits = engine.forward({1, std::ssize(text), text}, Positions::last);
    return static_cast<std::int32_t>(std::ranges::max_element(logits.values) - logits.values.begin());
  };
  int changed = 0;
  for (Arguments keys : {latent, grouped}) {
    for (const bool split : {false, true}) {
      if (split) keys.insert(keys.end(), kMesh.begin(), kMesh.end());
      Engine engine = open(keys);
      std::vector<std::int32_t> text{3, 1, 4}, before = text;
      TokenStream stream = engine.generate(text, {.most_tokens = 8});
      for (int i = 0; i < 3; ++i) text.push_back(*stream.next());
      const std::int32_t untrained = next_of(engine, text);
      engine.train_step({batch_of(4, 8), {}});
      changed += untrained != next_of(engine, text);
      for (int i = 0; i < 3; ++i) {
        const std::int32_t expected = next_of(engine, text);
        text.push_back(*stream.next());
        EXPECT_EQ(text.back(), expected) << "token " << i << " after the step, split " << split;
      }
      TokenStream fresh = engine.generate(before, {.most_tokens = 8});
      for (int i = 0; i < 6; ++i) {
        const std::int32_t expected = next_of(engine, before);
        before.push_back(*fresh.next());
        EXPECT_EQ(before.back(), expected) << "token " << i << " of a new text, split " << split;
      }
    }
  }
  EXPECT_GE(changed, 2) << "the step changes no text, so the test shows nothing";
}

// Weights in float32 are rounded to the type of the computation: the same numbers as weights in that type.
TEST(Engine, WeightsOfAnotherTypeAreTheSameNumbers) {
  Engine converted = open({"dtype=bfloat16", "weight_dtype=float32"}),
         stored = open({"dtype=bfloat16", "weight_dtype=bfloat16"});
  for (const std::int64_t length : {1, 2, 5, 16})
    EXPECT_EQ(converted.forward(batch_of(1, length)).values, stored.forward(batch_of(1, length)).values)
        << length;
}

TEST(Engine, TextsSideBySide) {
  Engine engine = open({"per_device_batch_size=2"});
  const auto alone = [&](std::vector<std::int32_t> prompt) {
    std::vector<std::int32_t> text;
    for (const std::int32_t token : engine.generate(prompt, {.most_tokens = 4})) text.push_back(token);
    return text;
  };
  const auto first = alone({1, 2}), second = alone({9, 8, 7});
  TokenStream a = engine.generate({1, 2}, {.most_tokens = 4}),
              b = engine.generate({9, 8, 7}, {.most_tokens = 4});
  expect_error([&] { engine.generate({5}); }, "2 texts are being made");
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.next(), first[i]);
    EXPECT_EQ(b.next(), second[i]);
  }
  EXPECT_EQ(a.next(), std::nullopt);  // its row is free
  EXPECT_TRUE(engine.generate({5}).next().has_value());
  const Sampling drawn{.most_tokens = 4, .temperature = 1, .top_k = 20, .seed = 11};
  std::vector<std::int32_t> once, again;
  for (const std::int32_t token : engine.generate({5}, drawn)) once.push_back(token);
  for (const std::int32_t token : engine.generate({5}, drawn)) again.push_back(token);
  EXPECT_EQ(once, again);
}

// Five prompts on an engine with room for two texts, on one rank and on four.
TEST(Engine, CompletesPromptsSideBySide) {
  const std::vector<std::vector<std::int32_t>> prompts{{1, 2}, {9, 8, 7}, {3, 1, 4}, {5}, {60, 61, 62, 63}};
  Engine one = open({"per_device_batch_size=2"}), four = open(kMesh);
  std::vector<std::vector<std::int32_t>> alone;
  for (const std::vector<std::int32_t>& prompt : prompts) {
    alone.emplace_back();
    for (const std::int32_t token : one.generate(prompt, {.most_tokens = 4})) alone.back().push_back(token);
  }
  for (Engine* const engine : {&one, &four}) {
    const std::vector<Text> texts = engine->complete(prompts, {.most_tokens = 4, .log_probs = true});
    ASSERT_EQ(texts.size(), prompts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(texts[i].tokens, alone[i]) << i;
      ASSERT_EQ(texts[i].log_probs.size(), 4u);
      EXPECT_FALSE(texts[i].ended);
      std::vector<std::int32_t> read = prompts[i];
      for (std::size_t t = 0; t < 4; ++t) {
        const Logits logits = one.forward({1, std::ssize(read), read}, Positions::last);
        double sum = 0;
        for (const float logit : logits.values) sum += std::exp(static_cast<double>(logit));
        const auto picked = static_cast<std::size_t>(texts[i].tokens[t]);
        EXPECT_NEAR(texts[i].log_probs[t], static_cast<double>(logits.values[picked]) - std::log(sum), 1e-4);
        read.push_back(texts[i].tokens[t]);
      }
    }
  }
  const std::int32_t end = alone[0][1];
  const Text ended = one.complete({prompts[0]}, {.ends = {end}})[0];
  EXPECT_TRUE(ended.ended);
  EXPECT_EQ(ended.tokens.back(), end);
  const Sampling drawn{.most_tokens = 8, .temperature = 1, .seed = 4};
  const std::vector<Text> draws = one.complete({{5}, {5}}, drawn), again = one.complete({{5}, {5}}, drawn);
  EXPECT_EQ(draws[0].tokens, again[0].tokens);
  EXPECT_NE(draws[0].tokens, draws[1].tokens) << "each text has draws of its own";
  const std::vector<std::int32_t> free = one.complete({{5}}, {.most_tokens = 11})[0].tokens,
                                  repeated =
                                      one.complete({{5}}, {.most_tokens = 11, .frequency_penalty = -2})[0]
                                          .tokens;
  EXPECT_NE(free, repeated);
  EXPECT_TRUE(one.complete({}).empty());
}

// Five prompts wait, and two have room at once. The first prompt has a token whose embedding is no number.
TEST(Engine, ATextThatFailsEndsThoseBesideIt) {
  Engine engine = open({"per_device_batch_size=2"});
  const ParameterView table = engine.parameter("embedding");
  ASSERT_EQ(table.shards.size(), 1u);
  auto* const weights = static_cast<float*>(const_cast<void*>(table.shards[0].data));
  weights[7 * table.shape[1]] = std::nanf("");
  const auto fails = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::runtime);
      EXPECT_NE(std::string(error.what()).find("after 2 tokens are no numbers; the embedding"),
                std::string::npos)
          << error.what();
    }
  };
  fails([&] { engine.complete({{7, 1}, {9, 8}, {3, 1}, {5}, {6}}, {.most_tokens = 4}); });
  fails([&] { engine.generate({7, 1}).next(); });
  EXPECT_EQ(engine.complete({{9, 8}, {3, 1}, {5}}, {.most_tokens = 4})[2].tokens.size(), 4u);
}

TEST(Engine, StopsAtTextsAndKeepsSchemas) {
  Engine engine = open({"tokenizer_type=byte", "vocab_size=259", "max_target_length=48"});
  const std::vector<std::int32_t> prompt = engine.encode("ab");
  const Sampling drawn{.most_tokens = 40, .temperature = 3, .seed = 9};
  const Text whole = engine.complete({prompt}, drawn)[0];
  EXPECT_EQ(engine.decode(whole.tokens), whole.text);
  Sampling stopping = drawn;
  const std::size_t at = whole.text.find_first_of("abcdefghijklmnopqrstuvwxyz", 3);
  ASSERT_NE(at, std::string::npos) << whole.text;
  stopping.stop = {whole.text.substr(at, 1)};
  const Text stopped = engine.complete({prompt}, stopping)[0];
  EXPECT_TRUE(stopped.ended);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stopping.stop[0])));
  Sampling schema = drawn;
  schema.json_schema = R"({"enum": ["yes", 17]})";
  const Text kept = engine.complete({prompt}, schema)[0];
  EXPECT_TRUE(kept.ended);
  EXPECT_TRUE(kept.text == "\"yes\"" || kept.text == "17") << kept.text;
  std::vector<std::int32_t> streamed;
  for (const std::int32_t token : engine.generate(prompt, schema)) streamed.push_back(token);
  EXPECT_EQ(streamed, kept.tokens);
}

TEST(Engine, TokensComeWithTheirTextAndLogProbability) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/qwen3moe-tiny";
  for (const Arguments& layout : {Arguments{"ranks=1"}, {"ranks=2", "ici_expert_parallelism=2"}}) {
    Arguments keys{folder, "tokenizer_type=byte"};
    keys.insert(keys.end(), layout.begin(), layout.end());
    Engine engine = Engine::open(Settings::parse(keys));
    const std::vector<std::int32_t> prompt = engine.encode("ab");
    Sampling sampling{.most_tokens = 20, .log_probs = true};
    const auto streamed = [&] {
      Text text;
      TokenStream stream = engine.generate(prompt, sampling);
      for (const std::int32_t token : stream) {
        text.tokens.push_back(token);
        text.text += stream.text();
        text.log_probs.push_back(stream.log_prob().value());
      }
      return text;
    };
    const Text whole = engine.complete({prompt}, sampling)[0], came = streamed();
    EXPECT_EQ(came.tokens, whole.tokens);
    EXPECT_EQ(came.text, whole.text);
    EXPECT_EQ(came.log_probs, whole.log_probs);
    sampling.stop = {whole.text.substr(whole.text.size() / 2)};
    EXPECT_EQ(streamed().text, whole.text.substr(0, whole.text.size() / 2));
  }
}

TEST(Engine, ATextMayBeStoppedFromOutside) {
  for (const Arguments& layout : {Arguments{}, kMesh}) {
    Arguments keys{"max_target_length=30000", "per_device_batch_size=1"};
    keys.insert(keys.end(), layout.begin(), layout.end());
    Engine engine = open(keys);
    const std::vector<std::int32_t> expected = engine.complete({{5}}, {.most_tokens = 4})[0].tokens;
    std::stop_source stop;
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      stop.request_stop();
    });
    const std::vector<Text> texts = engine.complete(std::vector<std::vector<std::int32_t>>(9, {5}),
                                                    {.most_tokens = 29000}, stop.get_token());
    other.join();
    for (const Text& text : texts) {
      EXPECT_FALSE(text.ended);
      EXPECT_LT(text.tokens.size(), 29000u);
    }
    EXPECT_EQ(engine.complete({{5}}, {.most_tokens = 4})[0].tokens, expected);
  }
}

TEST(Engine, LoadingMayBeStoppedFromOutside) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/qwen3moe-tiny";
  for (const std::string& model : {folder, std::string("model_name=deepseek3-tiny")}) {  // read, and drawn
    std::stop_source stop;
    const Settings settings = Settings::parse({model, "ranks=2", "ici_expert_parallelism=2"});
    EXPECT_EQ(Engine::open(settings, stop.get_token()).ranks(), 2);
    stop.request_stop();
    try {
      Engine::open(settings, stop.get_token());
      ADD_FAILURE() << model << " was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::runtime);
      EXPECT_NE(std::string(error.what()).find("asked to stop"), std::string::npos) << error.what();
    }
  }
}

// The caller's thread hears how much is read, and what it throws ends the opening.
TEST(Engine, OpeningTellsHowFarItIs) {
  const auto begin = std::filesystem::temp_directory_path() / fmt::format("progress-{}", ::getpid());
  const std::string folder = begin.string();
  open().save(folder);
  for (const Arguments& mesh : {Arguments{}, kMesh}) {
    std::vector<std::pair<std::int64_t, std::int64_t>> told;
    const auto thread = std::this_thread::get_id();
    Arguments words = tiny(mesh);
    words.push_back("load_parameters_path=" + folder);
    const Settings settings = Settings::parse(words);
    Engine engine = Engine::open(settings, {}, [&](std::int64_t read, std::int64_t all) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      EXPECT_TRUE(told.empty() || told.back().first <= read);
      told.emplace_back(read, all);
    });
    std::int64_t bytes = 0;
    for (const ParameterInfo& p : engine.parameters())
      bytes += static_cast<std::int64_t>(engine.read_parameter(p.name).size() * sizeof(float));
    ASSERT_FALSE(told.empty());
    EXPECT_EQ(told.back(), std::pair(bytes, bytes));

    std::stop_source stop;
    EXPECT_THROW(Engine::open(settings, {}, [](std::int64_t, std::int64_t) { throw std::out_of_range("x"); }),
                 std::out_of_range);
    stop.request_stop();
    EXPECT_THROW(Engine::open(settings, stop.get_token(), [](std::int64_t, std::int64_t) {}), Error);
  }
  std::filesystem::remove_all(folder);
}

TEST(Engine, TellsWhatItIs) {
  Engine engine = open(kMesh);
  const auto axes = engine.mesh();
  EXPECT_NE(std::ranges::find(axes, std::pair<std::string, int>("expert", 2)), axes.end());
  EXPECT_NE(std::ranges::find(axes, std::pair<std::string, int>("data", 1)), axes.end());
  EXPECT_EQ(engine.device(), "cpu");
  EXPECT_NE(engine.model().find("\"experts\":4"), std::string::npos) << engine.model();
  const MemoryUse before = engine.memory();
  std::int64_t shards = 0;
  for (const ParameterInfo& p : engine.parameters()) {
    std::int64_t bytes = sizeof(float);
    for (const std::int64_t size : p.block) bytes *= size;
    shards += 4 * bytes;
  }
  EXPECT_GE(before.in_use, shards);
  EXPECT_GE(before.peak, before.in_use);
  engine.train_step({batch_of(4, 8)});
  EXPECT_GE(engine.memory().in_use, before.in_use + shards);  // the optimizer's state
}

// A broken CHECK of a rank is an error of the call, and of all further ones.
TEST(Engine, ABugInARankEndsTheEngineAlone) {
  for (const int rank : {0, 1}) {
    ::setenv("SWITCHYARD_FAULT", fmt::format("kind=check,rank={},step=0,phase=dispatch", rank).c_str(), 1);
    Engine engine = open({"ranks=2", "ici_expert_parallelism=2"});
    ::unsetenv("SWITCHYARD_FAULT");
    for (int call = 0; call < 2; ++call) {
      try {
        engine.train_step({batch_of(8, 8)});
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::internal) << error.what();
        EXPECT_NE(std::string(error.what()).find(fmt::format("rank {}: ", rank)), std::string::npos);
      }
    }
  }
  EXPECT_EQ(open().forward(batch_of(1, 4)).values.size(), 4u * 64);
}

TEST(Engine, AShardOutlivesItsEngine) {
  std::optional<Engine> engine = open();
  const Shard shard = engine->parameter("layers.0.moe.gate").shards[0];
  const std::vector<float> values = engine->read_parameter("layers.0.moe.gate");
  engine.reset();
  const Engine other = open({"init_weights_seed=4"});  // would take memory that was freed
  EXPECT_TRUE(std::ranges::equal(
      values, std::span(static_cast<const float*>(shard.data), shard.bytes / sizeof(float))));
}

TEST(Engine, SettingErrorsHaveTheirParts) {
  const auto parts = [](const auto& call) {
    try {
      call();
    } catch (const SettingError& error) {
      return Arguments{error.key(), error.value(), error.expected()};
    }
    return Arguments{};
  };
  EXPECT_EQ(parts([] { open({"ranks=x"}); }), (Arguments{"ranks", "x", "an integer of at least 1"}));
  EXPECT_EQ(parts([] { open({"rnaks=2"}); }), (Arguments{"rnaks", "", "ranks"}));
  EXPECT_EQ(parts([] { open({"lr=2"}); }), (Arguments{"lr", "", "learning_rate"}));
  Engine engine = open();
  EXPECT_EQ(parts([&] { engine.generate({1}, {.top_p = 2}); }),
            (Arguments{"top_p", "2", "more than 0, at most 1"}));
}

TEST(Engine, CallsOfSeveralThreadsAreOrdered) {
  Engine engine = open(kMesh);
  const Logits want = engine.forward(batch_of(4, 5));
  std::vector<std::thread> threads;
  std::vector<Logits> found(4);
  for (Logits& logits : found)
    threads.emplace_back([&engine, &logits] { logits = engine.forward(batch_of(4, 5)); });
  for (std::thread& thread : threads) thread.join();
  for (const Logits& logits : found) EXPECT_EQ(logits.values, want.values);
}

// tests/mpi runs this under mpirun, too: every process has the same results as one process with both ranks.
TEST(Engine, TwoRanksWhereverTheyAre) {
  const Arguments mesh{"ranks=2", "ici_expert_parallelism=2", "per_device_batch_size=2"};
  const TrainBatch batch{batch_of(4, 8)};
  std::vector<float> logits, weights;
  std::vector<std::int32_t> text;
  double loss = 0;
  const char* const job = std::getenv("PMIX_NAMESPACE");  // of the processes of one mpirun
  const std::string saved =
      testing::TempDir() + "/two_ranks." + (job != nullptr ? job : std::to_string(::getpid()));
  for (int again = 0; again < 2; ++again) {  // an engine after another
    Engine engine = open(mesh);
    expect_error([&] { engine.forward({1, 1, {64}}); }, "token 64 is outside");
    loss = engine.train_step(batch).loss;
    logits = engine.forward(batch.inputs).values;
    weights = engine.read_parameter("layers.1.moe.wi_0");
    text.clear();
    for (const std::int32_t token : engine.generate({3, 1, 4}, {.most_tokens = 6})) text.push_back(token);
    EXPECT_EQ(text.size(), 6u);
    EXPECT_TRUE(std::ranges::all_of(weights, [](float v) { return v != 0; }));
    EXPECT_FALSE(engine.parameter("layers.1.moe.wi_0").shards.empty());
    if (again == 1) continue;
    engine.save(saved);
    engine.export_weights(saved + "-exported");
    EXPECT_TRUE(std::filesystem::exists(saved + "-exported/config.json"));
    expect_error([&] { engine.save(saved); }, "exists already");
  }
  {
    Arguments keys = mesh;
    keys.push_back("load_full_state_path=" + saved);
    Engine resumed = open(keys);
    EXPECT_EQ(resumed.read_parameter("layers.1.moe.wi_0"), weights);
    EXPECT_EQ(resumed.train_step(batch).step, 1);
  }
  // One process removes what all have read: two at a time find files gone that they have listed.
  if (const char* const rank = std::getenv("PMIX_RANK"); rank == nullptr || std::string(rank) == "0")
    for (const char* end : {"", "-exported"}) std::filesystem::remove_all(saved + end);
  double sum = 0;
  for (const float v : logits) sum += std::abs(v);
  for (const float v : weights) sum += std::abs(v);
  std::printf("engine: loss %.17g, sum %.17g, text", loss, sum);
  for (const std::int32_t token : text) std::printf(" %d", token);
  std::printf("\n");
}

TEST(Engine, WhatACallerDoesWrongIsAnError) {
  expect_error([] { Settings::parse({"num_exprts=4"}); }, "the nearest known key is num_experts");
  expect_error([] { open({"ranks=4", "ici_expert_parallelism=3"}); }, "ici_expert_parallelism");
  expect_error([] { open({"num_experts=6", "ranks=4", "ici_expert_parallelism=4"}); }, "num_experts");
  expect_error([] { open({"load_parameters_path=nowhere"}); }, "nowhere");
  expect_error([] { open({"mtp_draft=true"}); }, "mtp_draft=true");
  expect_error([] { open({"deterministic_batches=true"}); }, "deterministic_batches=true");
  expect_error([] { open({"routing_record=file"}); }, "routing_record");
  Engine engine = open();
  const Logits before = engine.forward(batch_of(4, 5));
  expect_error([&] { engine.forward({1, 2, {1}}); }, "rows * length = 1 * 2");
  expect_error([&] { engine.forward({1, 1, {64}}); }, "token 64 is outside the vocabulary of 64");
  expect_error([&] { engine.forward({0, 0, {}}); }, "at least 1");
  expect_error([&] { engine.generate({}); }, "generate");
  expect_error([&] { engine.generate({1}, {.top_p = 2}); }, "top_p=2");
  expect_error([&] { engine.generate(std::vector<std::int32_t>(17, 1)); }, "max_target_length=16");
  expect_error([&] { engine.complete({{1}, {64}}); }, "complete: token 64 is outside the vocabulary of 64");
  expect_error([&] { engine.generate({1}, {.repetition_penalty = 0}); }, "repetition_penalty=0");
  expect_error([&] { engine.generate({1}, {.presence_penalty = 3}); }, "presence_penalty=3");
  expect_error([&] { engine.generate({1}, {.stop = {"x"}}); }, "stop: tokenizer_path");
  expect_error([&] { engine.generate({1}, {.json_schema = "{}"}); }, "json_schema: tokenizer_path");
  expect_error([&] { engine.train_step({batch_of(3, 4)}); }, "3 sequences, expected 4");
  expect_error([&] { engine.train_step({batch_of(4, 4), {1}}); }, "1 targets");
  expect_error([&] { engine.parameter("layers.0.moe.wi0"); }, "layers.0.moe.wi_0");
  expect_error([&] { engine.encode("a"); }, "tokenizer_path");
  EXPECT_EQ(engine.forward(batch_of(4, 5)).values, before.values);  // it goes on
}

TEST(Engine, AFolderSaysWhatTheModelIs) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/qwen3moe-tiny";
  Engine engine = Engine::open(Settings::parse({folder, "tokenizer_type=byte", "dtype=float32"}));
  EXPECT_EQ(engine.vocabulary(), 256);
  EXPECT_EQ(engine.encode("ab"), (std::vector<std::int32_t>{97, 98}));
  EXPECT_EQ(engine.decode({97, 98}), "ab");
  EXPECT_EQ(engine.forward({1, 2, {97, 98}}).values.size(), 512u);
  expect_error([&] { engine.complete({{97}}, {.stop = {""}}); }, "stop: expected texts that are not empty");
  expect_error([&] { engine.complete({{97}}, {.json_schema = "{"}); }, "json_schema: expected JSON, got {");
  expect_error([&] { engine.complete({{97}}, {.json_schema = R"({"minLength": "x"})"}); }, "json_schema: ");
  const std::string packed = std::string(kSourceFolder) + "/tests/golden/gguf/qwen3moe/Q4_0.gguf";
  Engine of_blocks = Engine::open(Settings::parse({packed}));
  EXPECT_TRUE(of_blocks.generate({1, 2}).next().has_value());
  expect_error([&] { of_blocks.train_step({batch_of(1, 4)}); }, "weight_format=dense");
}

}  // namespace
}  // namespace switchyard
