// Tests every case of the table on an emulated GPU, with small shapes.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "bench/run.h"
#include "core/error.h"
#include "grammar/grammar.h"
#include "kernels/cuda/planned.h"

namespace switchyard::bench {
namespace {

// OnDevice: settings that make a case small, and its results; or why the case refuses.
struct OnDevice {
  std::vector<std::string> settings;
  std::size_t results = 0;
  std::string refused = {};
};

const std::vector<std::string> kTinyModel{
    "base_emb_dim=16", "base_num_query_heads=2", "base_num_kv_heads=2",       "head_dim=8",
    "base_mlp_dim=16", "base_moe_mlp_dim=16",    "base_num_decoder_layers=1", "num_experts=4",
    "vocab_size=32",   "num_experts_per_tok=2",  "per_device_batch_size=1"};

std::vector<std::string> tiny_model(std::vector<std::string> more) {
  more.insert(more.end(), kTinyModel.begin(), kTinyModel.end());
  return more;
}

const std::map<std::string, OnDevice>& small_cases() {
  static const std::map<std::string, OnDevice> all{
      {"peak", {{}, 0, "no peaks"}},
      {"gmm", {{"tokens=8", "emb=16", "mlp=16", "experts=4", "topk=2"}, 9}},
      {"moe", {{"tokens=8", "emb=16", "mlp=16", "experts=4", "topk=2"}, 2}},
      {"attention", {{"seq=16", "heads=2", "head_dim=8"}, 2}},
      {"delta", {{"seq=8", "key_heads=1", "value_heads=2", "key_dim=8", "value_dim=8", "chunk=4"}, 2}},
      {"loss", {{"rows=8", "emb=16", "vocab=40"}, 2}},
      {"optimizer", {{"weights=500"}, 2}},
      {"checkpoint", {{}, 0, "disk"}},
      {"sampling", {{}, 0, "the CPU"}},
      {"grammar", {{}, 0, "the host"}},
      {"comm", {{"ranks=2", "kib=2"}, 7}},
      {"train", {tiny_model({"max_target_length=8", "steps=3"}), 1}},
      {"generate", {tiny_model({"prompt_tokens=4", "tokens=3"}), 2}}};
  return all;
}

nlohmann::ordered_json run_on(const Case& chosen, const std::string& device,
                              std::vector<std::string> settings, std::string* said = nullptr) {
  settings.push_back("device=" + device);
  return run_case(chosen, settings, 1e-3, [&](const std::string& line) {
    if (said != nullptr) *said += line + "\n";
  });
}

const Case& case_named(const std::string& name) {
  for (const Case& one : cases()) {
    if (one.name == name) return one;
  }
  throw std::out_of_range(name);
}

// No peak, and no share of one.
void expect_no_card(const nlohmann::ordered_json& result) {
  for (const char* key :
       {"peak_tflops", "fraction_of_peak", "stream_gb_per_s", "roofline_seconds", "fraction_of_roofline",
        "fraction_of_update_in_place", "weights_over_stream", "weights_over_read", "bytes_over_stream"}) {
    if (result.contains(key)) {
      EXPECT_TRUE(result.at(key).is_null()) << key << " " << result.dump();
    }
  }
  EXPECT_GT(result.at("seconds"), 0);
}

TEST(BenchOnAGpu, EveryCaseRunsThereOrSaysWhyNot) {
  std::size_t found = 0;
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    ASSERT_TRUE(small_cases().contains(one.name)) << "a new case: say how it runs on a GPU";
    const OnDevice& want = small_cases().at(one.name);
    ++found;
    if (!want.refused.empty()) {
      try {
        run_on(one, "cuda_emulated", want.settings);
        ADD_FAILURE() << "not refused";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), Error::Kind::usage);
        const std::string line = error.what();
        EXPECT_NE(line.find("device=cuda_emulated"), std::string::npos) << line;
        EXPECT_NE(line.find(want.refused), std::string::npos) << line;
        EXPECT_EQ(line.find('\n'), std::string::npos);
      }
      continue;
    }
    std::string said;
    const std::int64_t before = gpu::launches();
    const auto json = run_on(one, "cuda_emulated", want.settings, &said);
    if (one.name != std::string_view("comm")) {
      EXPECT_GT(gpu::launches(), before);
    }
    EXPECT_EQ(json.at("device"), "cuda_emulated");
    EXPECT_TRUE(json.at("machine").get<std::string>().starts_with("a GPU emulated on "))
        << json.at("machine");
    EXPECT_TRUE(json.at("peaks").is_null());
    EXPECT_NE(said.find("peaks: not measured"), std::string::npos) << said;
    EXPECT_EQ(json.at("results").size(), want.results);
    for (const auto& result : json.at("results")) {
      EXPECT_EQ(result.at("name"), one.name);
      expect_no_card(result);
    }
  }
  EXPECT_EQ(found, small_cases().size());
}

TEST(BenchOnAGpu, KernelsAndHostReadsOfAStepAreCounted) {
  for (const char* name : {"train", "generate"}) {
    SCOPED_TRACE(name);
    std::string said;
    const auto run = [&](const std::string& device) {
      return run_on(case_named(name), device, small_cases().at(name).settings, &said).at("results");
    };
    const auto first = run("cuda_emulated"), second = run("cuda_emulated");
    ASSERT_GT(first.size(), 0u);
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_GT(first[i].at("kernels_a_step"), 10);
      EXPECT_GT(first[i].at("host_reads_a_step"), 0);
      EXPECT_EQ(first[i].at("kernels_a_step"), second[i].at("kernels_a_step"));
      EXPECT_EQ(first[i].at("host_reads_a_step"), second[i].at("host_reads_a_step"));
      double sum = 0;
      for (const auto& [op, seconds] : first[i].at("kernel_seconds_by_op").items()) {
        EXPECT_GT(seconds, 0) << op;
        sum += seconds.get<double>();
      }
      EXPECT_NEAR(sum, first[i].at("kernel_seconds"), 1e-9);
      EXPECT_GE(first[i].at("between_kernels_seconds"), 0);
    }
    EXPECT_NE(said.find("host reads a step"), std::string::npos) << said;
    EXPECT_FALSE(run_on(case_named(name), "cpu", small_cases().at(name).settings)
                     .at("results")
                     .back()
                     .contains("kernels_a_step"));
  }
}

TEST(BenchOnAGpu, AStepReadsTheCacheOfTheTokensBeforeIt) {
  const auto results =
      run_on(case_named("generate"), "cuda_emulated", small_cases().at("generate").settings).at("results");
  ASSERT_EQ(results.size(), 2u);
  const double token = 2 * 2 * 8 * 2;  // keys and values of two heads, bfloat16
  EXPECT_DOUBLE_EQ(results[0].at("cache_bytes").get<double>(), 4 * token);
  EXPECT_DOUBLE_EQ(results[1].at("cache_bytes").get<double>(), 5 * token);
  for (const auto& result : results)
    EXPECT_EQ(result.at("bytes"),
              result.at("weight_bytes").get<double>() + result.at("cache_bytes").get<double>());
}

TEST(BenchOnAGpu, ACopysSizeIsRefusedWhereNothingIsCopied) {
  EXPECT_THROW(run_on(case_named("loss"), "cuda_emulated", {"rows=8", "emb=16", "vocab=40", "copy_mib=16"}),
               Error);
}

TEST(BenchOnTheCpu, ThePeaksHaveTheNameOfTheMachine) {
  const auto json = run_on(case_named("optimizer"), "cpu", {"weights=500", "copy_mib=16"});
  EXPECT_EQ(json.at("device"), "cpu");
  EXPECT_EQ(json.at("peaks").at("of"), json.at("machine"));
  EXPECT_EQ(json.at("peaks").at("copy_gb_per_s"), json.at("results").back().at("stream_gb_per_s"));
}

}  // namespace
}  // namespace switchyard::bench
