// Tests every case on small shapes: the report has all fields, and its numbers are consistent.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include "bench/choices.h"
#include "bench/model_run.h"
#include "bench/peak.h"
#include "bench/run.h"
#include "core/cores.h"
#include "core/error.h"
#include "grammar/grammar.h"
#include "kernels/registry/isa.h"
#include "models/model_config.h"

namespace switchyard::bench {
namespace {

using Settings = std::vector<std::string>;

const Case& find_case(const std::string& name) {
  const auto all = cases();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Case& c) { return c.name == name; });
  CHECK(found != all.end(), "{}", name);
  return *found;
}

nlohmann::ordered_json run_small(const std::string& name, Settings settings) {
  settings.push_back("copy_mib=16");
  return run_case(find_case(name), settings, 1e-3, [](const std::string&) {});
}

void expect_near(double got, double want, const std::string& what) {
  EXPECT_NEAR(got, want, 1e-9 * std::abs(want)) << what;
}

void expect_consistent(const nlohmann::ordered_json& r) {
  const std::string what = r.dump();
  const auto number = [&](const char* key) { return r.at(key).get<double>(); };
  for (const char* key : {"seconds", "peak_tflops", "stream_gb_per_s", "best_seconds"})
    EXPECT_GT(number(key), 0) << key << " " << what;
  for (const char* key : {"flops", "bytes", "roofline_seconds"}) EXPECT_GE(number(key), 0) << key << what;
  EXPECT_TRUE(r.at("shape").is_object());
  EXPECT_TRUE(std::set<std::string>({"bf16", "f32"}).contains(r.at("dtype"))) << what;
  EXPECT_TRUE(std::set<std::string>({"fwd", "dlhs", "drhs", "fwd+bwd"}).contains(r.at("direction"))) << what;
  EXPECT_GE(number("rounds"), 2) << what;
  EXPECT_LE(number("best_seconds"), number("seconds")) << what;
  expect_near(number("tflops"), number("flops") / number("seconds") * 1e-12, what);
  expect_near(number("fraction_of_peak"), number("tflops") / number("peak_tflops"), what);
  expect_near(number("gb_per_s"), number("bytes") / number("seconds") * 1e-9, what);
  expect_near(number("roofline_seconds"),
              std::max(number("flops") / number("peak_tflops") * 1e-12,
                       number("bytes") / number("stream_gb_per_s") * 1e-9),
              what);
  expect_near(number("fraction_of_roofline"), number("roofline_seconds") / number("seconds"), what);
}

// The results of a case without those of the peaks before them.
std::vector<nlohmann::ordered_json> results_of(const std::string& name, const Settings& settings) {
  const auto json = run_small(name, settings);
  EXPECT_FALSE(json.at("version").get<std::string>().empty());
  EXPECT_FALSE(json.at("machine").get<std::string>().empty());
  std::vector<nlohmann::ordered_json> own;
  for (const auto& r : json.at("results")) {
    expect_consistent(r);
    if (r.at("name") == name && name != "peak")
      own.push_back(r);
    else
      EXPECT_EQ(r.at("name"), "peak");
  }
  EXPECT_GE(json.at("results").size(), own.size() + 5) << "peaks come first";
  EXPECT_EQ(json.at("peaks").at("of"), json.at("machine"));
  EXPECT_EQ(json.at("results")[0].at("name"), "peak");
  return own;
}

TEST(Bench, PeakOnEveryInstructionSet) {
  for (const Isa isa : {Isa::ref, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) {
    if (isa > machine_isa()) continue;
    const ScopedIsa cap(isa);
    const PeakReport report = measure_peaks(2, 1e-3, std::size_t{8} << 20, true);
    EXPECT_GT(report.peaks.bf16_flops, 0) << name_of(isa);
    EXPECT_GT(report.peaks.f32_flops, 0);
    EXPECT_GT(report.peaks.stream_bytes, 0);
    EXPECT_GT(report.peaks.read_bytes, 0);
    EXPECT_GT(report.peaks.update_bytes, 0);
    const auto& core = report.results[0].more.at("core");
    EXPECT_GT(core.at("read_l1_gb_per_s").get<double>(), 0);
    EXPECT_EQ(core.contains("tile_load_l1_ns"), isa == Isa::amx);
  }
  results_of("peak", {"threads=1"});
}

TEST(Bench, GroupedProducts) {
  const auto results =
      results_of("gmm", {"tokens=32", "emb=48", "mlp=40", "experts=4", "topk=2", "threads=2"});
  ASSERT_EQ(results.size(), 9u);  // three skews, three directions
  for (const auto& r : results) {
    EXPECT_EQ(r.at("flops"), 2.0 * 64 * 48 * 40);
    const bool all = r.at("shape").at("skew") != "one_hot" || r.at("direction") == "drhs";
    EXPECT_EQ(r.at("bytes"), 2.0 * (64 * 48 + 64 * 40 + (all ? 4 : 1) * 48 * 40)) << r.dump();
    EXPECT_EQ(r.at("threads"), 2);
    EXPECT_FALSE(r.at("shape").contains("model"));
  }
}

TEST(Bench, MoeLayer) {
  const auto results = results_of(
      "moe", {"tokens=128", "emb=32", "mlp=16", "experts=8", "topk=2", "skew=all", "direction=all"});
  ASSERT_EQ(results.size(), 6u);
  for (const auto& r : results) {
    const bool forward = r.at("direction") == "fwd";
    EXPECT_EQ(r.at("flops"), (forward ? 1 : 3) * (6.0 * 256 * 32 * 16 + 2.0 * 128 * 32 * 8));
    if (!forward) continue;
    double sum = 0;
    for (const auto& [phase, share] : r.at("phase_shares").items()) sum += share.get<double>();
    EXPECT_NEAR(sum, 1, 1e-9);
    EXPECT_LE(r.at("sort_gather_combine_share").get<double>(), 1);
  }
}

TEST(Bench, DecodingCountsTheWeightsInUse) {
  const auto results =
      results_of("moe", {"tokens=1,2", "emb=32", "mlp=16", "experts=8", "topk=2", "direction=fwd"});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) {
    const double tokens = r.at("shape").at("tokens"), experts = 2 * tokens;
    EXPECT_EQ(r.at("bytes"), 2 * (2 * tokens * 32 + 3 * experts * 32 * 16 + 32 * 8));
    EXPECT_NEAR(r.at("weight_gb_per_s").get<double>() * r.at("seconds").get<double>() * 1e9,
                2 * 3 * experts * 32 * 16, 1);
  }
}

TEST(Bench, PackedExpertsHaveTheirBytesAndNoBackwardPass) {
  const auto results = results_of("moe", {"tokens=1", "emb=64", "mlp=32", "experts=8", "topk=2",
                                          "direction=all", "weight_format=bfloat16,int4"});
  ASSERT_EQ(results.size(), 3u);
  const auto& packed = results.back();
  EXPECT_EQ(packed.at("shape").at("weight_format"), "int4");
  EXPECT_EQ(packed.at("direction"), "fwd");
  EXPECT_EQ(packed.at("bytes"), 2 * (2 * 64 + 64 * 8) + 4.5 / 8 * 3 * 2 * 64 * 32);
  EXPECT_THROW(results_of("moe", {"tokens=1", "emb=48", "mlp=32", "weight_format=int4"}), Error);
  EXPECT_THROW(results_of("moe", {"tokens=1", "direction=fwd+bwd", "weight_format=int8"}), Error);
}

TEST(Bench, Sampling) {
  const auto results = results_of("sampling", {"vocab=3000"});
  ASSERT_EQ(results.size(), 10u);
  for (const auto& result : results) {
    EXPECT_EQ(result.at("bytes"), 4.0 * 3000);
    EXPECT_EQ(result.at("threads"), 1);
    EXPECT_GT(result.at("ms_per_token"), 0);
  }
  EXPECT_EQ(results_of("sampling", {"vocab=1", "what=greedy,penalties", "logits=flat"}).size(), 2u);
}

TEST(Bench, Grammar) {
  if (!grammar::is_built_in()) GTEST_SKIP() << "this build has no grammars";
  const auto results = results_of("grammar", {"vocab=3000"});
  ASSERT_EQ(results.size(), 3u);
  for (const auto& result : results) {
    EXPECT_GT(result.at("first_mask_ms"), 0);
    EXPECT_GT(result.at("masks"), 40);
    EXPECT_LE(result.at("mask_us_mean"), result.at("mask_us_worst"));
  }
  EXPECT_THROW(results_of("grammar", {"schemas=/no/such/file"}), Error);
}

TEST(Bench, AttentionLossOptimizer) {
  const auto attention =
      results_of("attention", {"seq=16", "heads=4", "kv_heads=2", "head_dim=8", "v_dim=4"});
  ASSERT_EQ(attention.size(), 2u);
  EXPECT_EQ(attention[0].at("flops"), 2.0 * 4 * 136 * 12);
  EXPECT_EQ(attention[1].at("flops"), 2.0 * 4 * 136 * (12 + 24 + 8));
  const auto windowed = results_of("attention", {"seq=16", "heads=4", "head_dim=8", "window=3", "chunk=6"});
  ASSERT_EQ(windowed.size(), 2u);
  const auto packed = results_of("attention", {"seq=16", "heads=4", "head_dim=8", "documents=4"});
  ASSERT_EQ(packed.size(), 2u);
  EXPECT_EQ(packed[0].at("flops"), 2.0 * 4 * (4 * 10) * 16);
  EXPECT_EQ(windowed[0].at("flops"), 2.0 * 4 * (2 * 15 + 9) * 16);  // chunks of 6, 6 and 4 queries
  const auto delta =
      results_of("delta", {"seq=20", "key_heads=2", "value_heads=4", "key_dim=8", "value_dim=4", "chunk=8"});
  ASSERT_EQ(delta.size(), 2u);
  EXPECT_EQ(delta[0].at("flops"), 2.0 * 20 * 4 * 8 * 4 * 3);
  EXPECT_EQ(delta[1].at("flops"), 2.0 * 20 * 4 * 8 * 4 * 13);
  const auto loss = results_of("loss", {"rows=8", "emb=16", "vocab=40"});
  ASSERT_EQ(loss.size(), 2u);
  EXPECT_EQ(loss[1].at("flops"), 3 * 2.0 * 8 * 16 * 40);
  const auto optimizer = results_of("optimizer", {"weights=5000"});
  ASSERT_EQ(optimizer.size(), 2u);
  EXPECT_EQ(optimizer[0].at("bytes"), 7.0 * 2 * 5000);
  EXPECT_EQ(optimizer[1].at("bytes"), 7.0 * 4 * 5000);
}

TEST(Bench, CheckpointAgainstPlainFiles) {
  const std::string folder = ::testing::TempDir() + "switchyard_bench";
  std::filesystem::create_directories(folder);
  const auto results = results_of("checkpoint", {"mib=32", "folder=" + folder});
  ASSERT_EQ(results.size(), 2u);
  EXPECT_GT(results[0].at("bytes").get<double>(), 32 << 20);
  EXPECT_NEAR(results[1].at("fraction_of_disk").get<double>(),
              results[0].at("seconds").get<double>() / results[1].at("seconds").get<double>(), 1e-9);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Bench, EveryCollective) {
  const auto results = results_of("comm", {"ranks=2,3", "kib=2"});
  ASSERT_EQ(results.size(), 14u);
  for (const auto& r : results)
    EXPECT_EQ(r.at("threads"), std::min(usable_cores(), r.at("shape").at("ranks").get<int>()));
}

TEST(Bench, TrainingSteps) {
  const auto results =
      results_of("train", {"base_emb_dim=16", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=8",
                           "base_mlp_dim=16", "base_moe_mlp_dim=16", "base_num_decoder_layers=1",
                           "num_experts=4", "vocab_size=32", "max_target_length=8", "ranks=2",
                           "ici_expert_parallelism=2", "per_device_batch_size=1", "steps=3"});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_NEAR(results[0].at("tokens_per_s").get<double>() * results[0].at("seconds").get<double>(), 16, 1e-6);
  EXPECT_GT(results[0].at("loss").get<double>(), 0);
  EXPECT_GT(results[0].at("phase_seconds").at("forward").get<double>(), 0);
}

TEST(Bench, Generation) {
  const Settings model{"base_emb_dim=16",
                       "base_num_query_heads=2",
                       "base_num_kv_heads=2",
                       "head_dim=8",
                       "base_mlp_dim=16",
                       "base_moe_mlp_dim=16",
                       "num_experts=4",
                       "vocab_size=32",
                       "base_num_decoder_layers=1",
                       "num_experts_per_tok=2",
                       "prompt_tokens=6",
                       "tokens=4",
                       "ranks=2",
                       "ici_expert_parallelism=2",
                       "per_device_batch_size=1.5"};
  const auto results = results_of("generate", model);
  ASSERT_EQ(results.size(), 2u);
  for (const int i : {0, 1}) {
    EXPECT_EQ(results[i].at("shape").at("what"), i == 0 ? "prefill" : "decode");
    EXPECT_NEAR(results[i].at("tokens_per_s").get<double>() * results[i].at("seconds").get<double>(),
                i == 0 ? 18 : 3, 1e-6);
    // Attention 4 x 16 x 16, router 16 x 4, experts (3 x 16 x 16 each), norms 3 x 16, head 16 x 32. Each
    // token chooses half of the 4 experts.
    const double tokens = i == 0 ? 18 : 3, experts = 4 * (1 - std::pow(0.5, tokens));
    expect_near(results[i].at("weight_bytes"), 2 * (1024 + 64 + experts * 768 + 48 + 512), "weights");
    EXPECT_GT(results[i].at("cache_bytes"), 0);
    expect_near(results[i].at("bytes"),
                results[i].at("weight_bytes").get<double>() + results[i].at("cache_bytes").get<double>(),
                "sum");
  }
}

TEST(Bench, WhatDoesNotFitIsSkippedAndSaid) {
  std::string said;
  const auto json = run_case(find_case("gmm"), Settings{"tokens=2000000000", "direction=fwd", "copy_mib=16"},
                             1e-3, [&](const std::string& line) { said += line + "\n"; });
  EXPECT_EQ(json.at("results").size(), 5u);
  EXPECT_NE(said.find("skipped: gmm fwd"), std::string::npos) << said;
}

TEST(Bench, RowsOfExpertsAddUp) {
  const MoeShape shape{"", 100, 8, 8, 7, 3};
  for (const char* skew : {"balanced", "zipf", "one_hot"}) {
    const auto sizes = rows_of_experts(shape, skew);
    EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 300) << skew;
    EXPECT_GE(*std::min_element(sizes.begin(), sizes.end()), 0);
    const std::int64_t most = *std::max_element(sizes.begin(), sizes.end());
    EXPECT_EQ(most, std::string(skew) == "balanced" ? 43 : std::string(skew) == "zipf" ? 115 : 300);
  }
}

TEST(Bench, ChoicesAreDistinctAndAsSkewedAsAsked) {
  const MoeShape shape{"", 64, 8, 8, 8, 3};
  for (const char* skew : {"balanced", "zipf", "one_hot"}) {
    const Tensor ids = choices(shape, skew, 1);
    std::vector<int> rows(8, 0);
    for (std::int64_t t = 0; t < 64; ++t) {
      std::set<std::int32_t> mine;
      for (std::int64_t k = 0; k < 3; ++k) mine.insert(ids.data<std::int32_t>()[3 * t + k]);
      EXPECT_EQ(mine.size(), 3u) << skew;
      for (const std::int32_t e : mine) ++rows.at(static_cast<std::size_t>(e));
    }
    std::sort(rows.begin(), rows.end());
    if (std::string(skew) == "balanced") {
      EXPECT_EQ(rows.front(), rows.back());
    } else if (std::string(skew) == "zipf") {
      EXPECT_GT(rows.back(), 3 * rows.front());
    } else {
      EXPECT_EQ(rows, (std::vector<int>{0, 0, 0, 0, 0, 64, 64, 64}));
    }
  }
}

void expect_refused(const std::string& name, const Settings& settings, const std::string& part) {
  try {
    run_small(name, settings);
    ADD_FAILURE() << name << " accepted " << settings[0];
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(Bench, WrongInputIsSaidBeforeAnythingIsMeasured) {
  expect_refused("gmm", {"emv=3"}, "the nearest is emb");
  expect_refused("gmm", {"emb=x"}, "emb=x: expected a whole number");
  expect_refused("gmm", {"tokens=0"}, "tokens=0");
  expect_refused("gmm", {"topk=65"}, "at most the 64 experts");
  expect_refused("gmm", {"skew=flat"}, "balanced, zipf, one_hot");
  expect_refused("gmm", {"word"}, "expected key=value");
  expect_refused("gmm", {"dtype=int8"}, "dtype");
  expect_refused("gmm", {"threads=2000"}, "at most 1024");
  expect_refused("gmm", {"threads=1000"}, "copy_mib=16: expected at least 63");
  expect_refused("gmm", {"tokens=4000000000"}, "from 1 to 2147483647");
  expect_refused("attention", {"heads=8", "kv_heads=3"}, "divisor");
  expect_refused("attention", {"seq=16", "documents=3"}, "divisor of seq=16");
  expect_refused("attention", {"seq=16", "documents=2", "chunk=4"}, "expected 1 with chunk=4");
  expect_refused("checkpoint", {"device=cuda_emulated"}, "disk");
  expect_refused("delta", {"key_heads=3", "value_heads=4"}, "multiple");
  expect_refused("comm", {"kib=3"}, "even number");
  expect_refused("comm", {"threads=2"}, "no key threads");
  expect_refused("checkpoint", {"folder=missing-folder"}, "folder=missing-folder: No such file");
  expect_refused("checkpoint", {"mib=2147483647"}, "MiB are free");
  expect_refused("train", {"base_embed_dim=3"}, "base_emb_dim");
  expect_refused("train", {"dataset_type=text"}, "synthetic");
  expect_refused("generate", {"what=both"}, "prefill, decode");
  expect_refused("generate", {"dataset_type=text"}, "[bench] generate dataset_type=text");
}

TEST(Bench, OneOfTheModelsWidthsIsEnough) {
  for (const char* key : {"base_mlp_dim", "base_moe_mlp_dim"}) {
    const Config config = model_run_config("train", {std::string(key) + "=64"});
    EXPECT_EQ(config.get_int(key), 64);
    EXPECT_EQ(model_config(config).moe_mlp, 64) << key;
  }
}

}  // namespace
}  // namespace switchyard::bench
