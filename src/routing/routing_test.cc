// Tests experts recorded on one layout and replayed on another, by another engine, and invalid files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "data/packing.h"
#include "engine/model.h"
#include "kernels/moe/route.h"
#include "models/families/hub_source.h"
#include "routing/routing_keys.h"
#include "routing/step_routing.h"
#include "texts/generate.h"
#include "train/trainer.h"
#include "verify/case.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

using Keys = std::vector<std::string>;

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Keys kModel{"decoder_block=mixtral",  "base_emb_dim=32",       "base_num_decoder_layers=2",
                  "num_experts=4",          "num_experts_per_tok=2", "base_mlp_dim=32",
                  "base_num_query_heads=4", "base_num_kv_heads=4",   "head_dim=8",
                  "vocab_size=64",          "max_target_length=16",  "dtype=float32",
                  "weight_dtype=float32",   "init_weights_seed=5",   "gradient_accumulation_steps=2"};

void expect_usage_error(const std::function<void()>& work, const std::vector<std::string>& words) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage) << error.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << error.what() << "\nexpected: " << word;
    return;
  }
  ADD_FAILURE() << "no error; expected: " << words[0];
}

class Routings : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::filesystem::path folder_;
};

// Eight rows of two documents of 11 and 4 tokens and padding.
Batch two_documents(std::int64_t rows, std::int64_t length) {
  const Shape shape{rows, length};
  Batch batch;
  for (Tensor* x : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                    &batch.targets_segmentation})
    *x = Memory().zeros(DType::i32, shape);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t s = 0; s + 1 < length; ++s) {
      const std::int64_t at = r * length + s, first = s < 11 ? 0 : 11;
      batch.inputs.data<std::int32_t>()[at] = static_cast<std::int32_t>((at * 37 + r * 11 + 5) % 64);
      batch.inputs_position.data<std::int32_t>()[at] = static_cast<std::int32_t>(s - first);
      batch.inputs_segmentation.data<std::int32_t>()[at] = s < 11 ? 1 : 2;
      if (s == 10 || s + 2 == length) continue;
      batch.targets.data<std::int32_t>()[at] = static_cast<std::int32_t>(((at + 1) * 37 + r * 11 + 5) % 64);
      batch.targets_segmentation.data<std::int32_t>()[at] = s < 11 ? 1 : 2;
    }
  }
  return batch;
}

struct Stepped {
  std::vector<double> losses, norms;
  std::vector<RoutingAgreement> agreements;
  std::string records;
};

// Two steps on `batch`. The weights are those of `seed`.
Stepped train(const Keys& keys, const Batch& batch, const std::string& replay = "", std::int64_t seed = 5) {
  const Config config = Config::from_args(kModel + keys);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  std::shared_ptr<const RoutingIndex> index;
  if (!replay.empty())
    index = std::make_shared<const RoutingIndex>(RoutingFile::open(replay, routed_layers(model)));
  Stepped stepped;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model),
                                       static_cast<std::uint32_t>(seed), nullptr, nullptr));
    trainer.trace_routing(std::make_shared<StepRouting>(model, index, true));
    for (std::int64_t step = 0; step < 2; ++step) {
      const StepResult result = trainer.step(step, BatchRows(batch));
      trainer.evaluate(BatchRows(batch));  // which neither records nor replays
      if (context.comm->rank() != 0) {
        EXPECT_TRUE(result.routing_records.empty());
        continue;
      }
      stepped.losses.push_back(result.loss);
      stepped.norms.push_back(result.raw_grad_norm);
      if (result.routing) stepped.agreements.push_back(*result.routing);
      stepped.records += result.routing_records;
    }
  });
  return stepped;
}

TEST_F(Routings, RecordedOnOneLayoutAndReplayedOnAnother) {
  const Batch batch = two_documents(8, 16);
  const Stepped one = train({"per_device_batch_size=4"}, batch);
  const std::string file = write("one", one.records);
  const RoutingFile read = RoutingFile::open(file, {{0, 1}, 2, 4});
  ASSERT_EQ(read.records().size(), 32u);  // of two steps, eight rows, two documents
  EXPECT_EQ(read.records()[1].source, (RoutingSource{RoutingSource::Kind::train, 0, 0, 11}));
  EXPECT_EQ(read.records()[1].tokens.size(), 4u);
  const Keys layouts[]{
      {"per_device_batch_size=4"},
      {"per_device_batch_size=4", "remat_policy=full"},
      {"per_device_batch_size=4", "remat_policy=minimal", "num_moe_token_chunks=2"},
      {"per_device_batch_size=4", "sparse_matmul=false"},
      {"per_device_batch_size=4", "device=fenced"},
      {"per_device_batch_size=4", "device=cuda_emulated"},
      {"ranks=4", "per_device_batch_size=1", "ici_fsdp_parallelism=4"},
      {"ranks=4", "per_device_batch_size=1", "ici_expert_parallelism=4"},
      {"ranks=4", "per_device_batch_size=1", "ici_expert_parallelism=4", "use_ring_of_experts=true"},
      {"ranks=4", "per_device_batch_size=1", "ici_tensor_parallelism=2", "ici_context_parallelism=2"},
      {"ranks=4", "per_device_batch_size=1", "ici_pipeline_parallelism=2", "ici_expert_parallelism=2"},
      {"ranks=2", "per_device_batch_size=2", "ici_pipeline_parallelism=2", "pipeline_schedule=gpipe"},
      {"ranks=8", "per_device_batch_size=0.5", "ici_expert_parallelism=4", "ici_context_parallelism=2"},
  };
  for (const Keys& layout : layouts) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    const Stepped other = train(layout, batch, file);
    EXPECT_EQ(other.records, one.records);
    ASSERT_EQ(other.agreements.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(other.agreements[i].replayed, 8 * 15 * 2 * 2);
      EXPECT_EQ(other.agreements[i].covered(), 1);
      EXPECT_EQ(other.agreements[i].share(), 1);
      EXPECT_NEAR(other.losses[i], one.losses[i], 2e-5);
      EXPECT_NEAR(other.norms[i], one.norms[i], 1e-3 * one.norms[i]);
    }
  }
}

// Other weights would choose others: the experts are the file's, and gradients reach the router through them.
TEST_F(Routings, ARecordOutweighsTheRouter) {
  const Batch batch = two_documents(8, 16);
  const std::string file = write("other", train({"per_device_batch_size=4"}, batch, "", 9).records);
  const Stepped own = train({"per_device_batch_size=4"}, batch);
  const Stepped one = train({"per_device_batch_size=4"}, batch, file);
  EXPECT_LT(one.agreements[0].share(), 0.9);
  EXPECT_GT(one.agreements[0].share(), 0.1);
  EXPECT_NE(one.losses[0], own.losses[0]);
  const Stepped many =
      train({"ranks=4", "per_device_batch_size=1", "ici_expert_parallelism=2", "ici_pipeline_parallelism=2"},
            batch, file);
  EXPECT_EQ(many.agreements[0].agreed, one.agreements[0].agreed);
  EXPECT_NEAR(many.losses[1], one.losses[1], 2e-5);
  EXPECT_NEAR(many.norms[1], one.norms[1], 1e-3 * one.norms[1]);
}

// The file's records, with no expert in some of their slots: each third token's last one, each ninth's all.
std::string with_gaps(const RoutingFile& file) {
  const RoutedLayers& routed = file.routed();
  std::string records;
  for (const RoutingFile::Record& record : file.records()) {
    std::vector<std::uint16_t> experts;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(routed.slots));
    for (std::int64_t layer = 0; layer < std::ssize(routed.layers); ++layer) {
      for (std::int64_t token = 0; token < std::ssize(record.tokens); ++token) {
        file.experts(record, layer, token, ids);
        if (token % 3 == 1) ids.back() = kNoExpert;
        if (token % 9 == 1) std::ranges::fill(ids, kNoExpert);
        experts.insert(experts.end(), ids.begin(), ids.end());
      }
    }
    records += routing_record(routed, record.source, record.tokens, experts);
  }
  return records;
}

// Slots without an expert, as engines record that drop tokens, stay without one, and are recorded again so.
TEST_F(Routings, SlotsWithoutAnExpertAreReplayed) {
  const Batch batch = two_documents(8, 16);
  const std::string whole = train({"per_device_batch_size=4"}, batch).records;
  const std::string records = with_gaps(RoutingFile::open(write("whole", whole), {{0, 1}, 2, 4}));
  EXPECT_TRUE(whole.starts_with("SYROUTE1"));
  EXPECT_TRUE(records.starts_with("SYROUTE2"));
  const std::string file = write("gaps", records);
  std::optional<double> loss;
  for (const Keys& layout :
       {Keys{"per_device_batch_size=4"}, Keys{"per_device_batch_size=4", "device=cuda_emulated"},
        Keys{"ranks=4", "per_device_batch_size=1", "ici_expert_parallelism=4"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(layout, " ")));
    const Stepped replayed = train(layout, batch, file);
    EXPECT_EQ(replayed.records, records);
    EXPECT_GT(replayed.agreements[0].share(), 0.9);  // the second layer reads what lacks experts of the first
    EXPECT_EQ(replayed.agreements[0].replayed, 8 * (15 * 2 - (6 + 2)) * 2);  // of two documents, two layers
    EXPECT_NEAR(replayed.losses[1], loss.value_or(replayed.losses[1]), 2e-5);
    loss = replayed.losses[1];
  }
}

TEST_F(Routings, TheValueOfNoExpertIsNoExperts) {
  for (const std::int64_t experts : {4, 255, 256, 257, 1000}) {
    const RoutedLayers routed{{3}, 2, experts};
    const auto last = static_cast<std::uint16_t>(experts - 1);
    const std::vector<std::int32_t> tokens{7, 8};
    const auto read = [&](const std::vector<std::uint16_t>& given) {
      const RoutingFile file =
          RoutingFile::open(write("some", routing_record(routed, {}, tokens, given)), routed);
      std::vector<std::int32_t> ids(4);
      file.experts(file.records()[0], 0, 0, std::span(ids).first(2));
      file.experts(file.records()[0], 0, 1, std::span(ids).last(2));
      return ids;
    };
    EXPECT_EQ(read({last, 0, 1, last}), (std::vector<std::int32_t>{last, 0, 1, last}));
    EXPECT_EQ(read({last, kNoExpert, kNoExpert, kNoExpert}),
              (std::vector<std::int32_t>{last, kUnusedChoice, kUnusedChoice, kUnusedChoice}));
  }
}

struct Written {
  std::vector<std::vector<std::int32_t>> texts;  // with the last tokens made, which were not fed
  std::string records;
};

// Three texts on a layout, and a fourth that begins as the third.
Written write_texts(const Keys& layout) {
  const Config config = Config::from_args(kModel + layout);
  const ModelConfig model = model_config(config);
  const std::vector<std::vector<std::int32_t>> prompts{{3, 9, 27, 50, 1}, {3, 9, 8}, {60}};
  Written written;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    const Parameters parameters = Parameters::create(
        context, stage_specs(parameter_specs(model), context.stage, model), model.init_seed, {}, nullptr);
    Generator generator(context, model, parameters, 4, 15);
    generator.record_routing();
    const GenerateOptions options{.most_tokens = 10, .vocab = 64, .prompt_chunk = 2};
    const Generated made = generate(generator, prompts, options, [](std::size_t, std::int32_t) {});
    generator.copy_prefix(3, 2, 8);
    const SlotTokens further{3, {11, 12, 13}};  // of which two are taken back
    generator.feed(std::span(&further, 1));
    generator.truncate(3, 9);
    if (context.comm->rank() != 0) return;
    auto& texts = written.texts = prompts;
    for (std::size_t row = 0; row < prompts.size(); ++row)
      texts[row].insert(texts[row].end(), made.texts[row].tokens.begin(), made.texts[row].tokens.end());
    texts.push_back({texts[2].begin(), texts[2].begin() + 8});
    texts.back().push_back(11);
    for (std::size_t row = 0; row < texts.size(); ++row) {
      const auto fed = std::span(texts[row]).first(static_cast<std::size_t>(generator.length(row)));
      written.records += routing_record(routed_layers(model),
                                        {RoutingSource::Kind::generate, static_cast<std::int64_t>(row)}, fed,
                                        generator.routing(row, std::ssize(fed)));
    }
  });
  return written;
}

TEST_F(Routings, GeneratedTextsAreTrainedOn) {
  const auto& [texts, records] = write_texts({});
  for (const Keys& layout :
       {Keys{"ranks=2", "ici_expert_parallelism=2"}, Keys{"ranks=2", "ici_pipeline_parallelism=2"},
        Keys{"ranks=4", "ici_tensor_parallelism=2", "ici_context_parallelism=2"}, Keys{"device=fenced"},
        Keys{"device=cuda_emulated"}}) {
    EXPECT_EQ(write_texts(layout).records, records) << layout[0] << " " << layout.back();
  }
  ASSERT_EQ(texts.size(), 4u);
  Batch batch = two_documents(4, 16);
  for (Tensor* x : {&batch.inputs_segmentation, &batch.targets_segmentation})
    std::ranges::fill(x->span<std::int32_t>(), 0);
  double fed = 0;
  for (std::size_t row = 0; row < 4; ++row) {
    fed += row < 3 ? static_cast<double>(texts[row].size()) - 1 : static_cast<double>(texts[row].size());
    for (std::size_t s = 0; s < texts[row].size(); ++s) {
      const std::size_t at = row * 16 + s;
      batch.inputs.span<std::int32_t>()[at] = texts[row][s];
      batch.inputs_position.span<std::int32_t>()[at] = static_cast<std::int32_t>(s);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
      batch.targets_segmentation.span<std::int32_t>()[at] = s + 1 < texts[row].size();
    }
  }
  const Stepped trained = train({"per_device_batch_size=2"}, batch, write("generated", records));
  EXPECT_EQ(trained.agreements[0].replayed, fed * 4);
  EXPECT_EQ(trained.agreements[0].share(), 1);  // the same weights
  EXPECT_LT(trained.agreements[0].covered(), 1);
}

// The golden case's own tokens, as `generate` feeds them: what `verify` replays is what it would route.
TEST_F(Routings, VerifyReplaysWhatWasGenerated) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/deepseek3-tiny";
  const CaseRequest plain{folder, {}};
  const CaseReport without = run_case(plain);
  EXPECT_TRUE(without.pass());
  const std::size_t rows = without.rows.size();
  const nlohmann::json hub = read_json_file(folder + "/config.json");
  const Config config = Config::from_map(config_from_hub(hub), Keys{"dtype=float32", "weight_dtype=float32"});
  ModelOnMesh on_mesh(config, ModelUse::train);
  const ModelConfig model = on_mesh.model;
  const HubModel weights(model, family_of(hub), hub, open_hub_source(folder).weights);
  const ModelOnRanks ranks(std::move(on_mesh), nullptr, weights.fill());
  const Tensor ids = SafetensorsFile::open(folder + "/io.safetensors").read("input_ids");
  std::string records;
  ranks.run([&](Context& context) {
    const Parameters parameters = ranks.load(context);
    Generator generator(context, model, parameters, ids.dim(0), ids.dim(1));
    generator.record_routing();
    for (std::int64_t row = 0; row < ids.dim(0); ++row) {
      const auto tokens = ids.slice_rows(row, row + 1).span<std::int32_t>();
      const SlotTokens fed{static_cast<std::size_t>(row), {tokens.begin(), tokens.end()}};
      generator.feed(std::span(&fed, 1));
      records += routing_record(routed_layers(model), {RoutingSource::Kind::generate, row}, tokens,
                                generator.routing(fed.slot, ids.dim(1)));
    }
  });
  const std::string file = write("golden", records);
  for (const Keys& layout : {Keys{}, Keys{"ranks=4", "ici_expert_parallelism=4"}}) {
    const CaseReport report = run_case({folder, layout + Keys{"routing_replay=" + file}});
    EXPECT_TRUE(report.pass());
    ASSERT_EQ(report.rows.size(), rows + 1);
    const auto row = std::ranges::find(report.rows, "routing agreement", &Row::name);
    ASSERT_NE(row, report.rows.end());
    EXPECT_EQ(row->error.max_abs, 0);
  }
  expect_usage_error([&] { run_case({folder, {"routing_record=" + file}}); }, {"routing_record"});
}

TEST(RoutingIndex, FindsTheRecordThatBeginsMostAlike) {
  const RoutedLayers routed{{2}, 1, 300};
  const auto record = [&](std::vector<std::int32_t> tokens, std::int64_t step) {
    return routing_record(routed, {RoutingSource::Kind::train, step}, tokens,
                          std::vector<std::uint16_t>(tokens.size(), static_cast<std::uint16_t>(256 + step)));
  };
  const std::string file = testing::TempDir() + "/routing_index";
  std::ofstream(file, std::ios::binary) << record({1, 2, 3, 4}, 0) << record({1, 2, 3, 4, 5, 6}, 1)
                                        << record({1, 2, 3, 4}, 2) << record({7}, 3);
  const RoutingIndex index(RoutingFile::open(file, routed));
  const auto found = [&](std::vector<std::int32_t> text,
                         std::int64_t step) -> std::pair<std::int64_t, std::int64_t> {
    const auto at = index.find(text, {RoutingSource::Kind::train, step});
    if (!at) return {-1, -1};
    std::vector<std::int32_t> ids(1);
    index.file().experts(*at->record, 0, at->tokens - 1, ids);
    EXPECT_EQ(ids[0], 256 + at->record->source.step);
    return {at->record->source.step, at->tokens};
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(found({1, 2, 3, 4}, 9), Pair(2, 4));           // the last of those alike
  EXPECT_EQ(found({1, 2, 3, 4}, 0), Pair(0, 4));           // or that of its own step
  EXPECT_EQ(found({1, 2, 3, 4, 5, 9, 9}, 0), Pair(1, 5));  // two tokens may be missing
  EXPECT_EQ(found({1, 2, 3, 4, 9, 9, 9}, 0), Pair(-1, -1));
  EXPECT_EQ(found({1}, 9), Pair(2, 1));
  EXPECT_EQ(found({8}, 0), Pair(-1, -1));
  std::filesystem::remove(file);
}

TEST_F(Routings, OtherFilesAreRefused) {
  const RoutedLayers routed{{0, 1}, 2, 4};
  const std::vector<std::int32_t> tokens{5, 6, 7};
  const std::string good = routing_record(routed, {}, tokens, std::vector<std::uint16_t>(12, 3));
  const auto expect_refused = [&](const std::string& bytes, const RoutedLayers& model,
                                  const std::string& says) {
    const std::string file = write("hostile", bytes);
    expect_usage_error([&] { RoutingFile::open(file, model); }, {"[routing]", says});
  };
  EXPECT_EQ(RoutingFile::open(write("good", good + good), routed).records().size(), 2u);
  expect_refused("", routed, "empty");
  expect_refused("no record at all, but a text that is long enough to hold a whole header", routed,
                 "no record begins here");
  expect_refused(good, {{0, 2}, 2, 4}, "layers [0,1], expected the model's [0,2]");
  expect_refused(good, {{0, 1}, 1, 4}, "2 of 4 experts a token, expected the model's 1 of 4");
  expect_refused(good, {{0, 1}, 2, 8}, "2 of 4 experts a token, expected the model's 2 of 8");
  expect_refused(routing_record(routed, {}, tokens, std::vector<std::uint16_t>(12, 4)), routed,
                 "expert 4 of token 0 in layer 0, expected less than 4");
  std::vector<std::uint16_t> gaps(12, 3);
  gaps[0] = kNoExpert, gaps[3] = 4;
  expect_refused(routing_record(routed, {}, tokens, gaps), routed,
                 "expert 4 of token 1 in layer 0, expected less than 4");
  for (std::size_t size = good.size() + 1; size < 2 * good.size(); size += 7)
    expect_refused(
        (good + good).substr(0, size), routed,
        fmt::format("record 1 at byte {0}: the file ends inside it; `truncate -s {0}`", good.size()));
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string spoilt = good;
    spoilt[at] = static_cast<char>(spoilt[at] ^ 0x40);
    expect_refused(spoilt, routed, "record 0 at byte 0");
  }
  // What a killed training leaves is gone on with after its last whole record of an earlier step.
  const std::string later =
      routing_record(routed, {RoutingSource::Kind::train, 4}, tokens, std::vector<std::uint16_t>(12, 3));
  const std::string file = write("resumed", good + later + good.substr(0, 20));
  const auto size = static_cast<std::int64_t>(good.size());
  EXPECT_EQ(RoutingFile::bytes_before(file, 4), size);
  EXPECT_EQ(RoutingFile::bytes_before(file, 5), 2 * size);
  EXPECT_EQ(RoutingFile::bytes_before(path("nowhere"), 5), 0);
}

TEST_F(Routings, TextsWithoutARecordAndModelsWithoutExpertsAreRefused) {
  const Batch batch = two_documents(8, 16);
  const std::string file = write("recorded", train({"per_device_batch_size=4"}, batch).records);
  Batch other = batch;
  other.inputs = batch.inputs.clone();
  other.inputs.span<std::int32_t>()[16 * 3 + 12] ^= 1;
  for (const Keys& layout : {Keys{"per_device_batch_size=4"},
                             Keys{"ranks=4", "per_device_batch_size=1", "ici_pipeline_parallelism=2"}})
    expect_usage_error([&] { train(layout, other, file); },
                       {"step 0, row 3, token 11", "no record of the 4 tokens"});
  const Config dense = Config::from_args(Keys{"decoder_block=llama2", "routing_replay=" + file});
  expect_usage_error([&] { routing_files(dense, model_config(dense)); }, {"expected a model with experts"});
  const Config same = Config::from_args(kModel + Keys{"routing_replay=" + file, "routing_record=" + file});
  expect_usage_error([&] { routing_files(same, model_config(same)); }, {"expected another file"});
}

}  // namespace
}  // namespace switchyard
