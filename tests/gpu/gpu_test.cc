// The kernels of a GPU, run by the emulator: each against its reference, whole models and training steps
// against stored numbers, and texts against the CPU's.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/generate_command.h"
#include "cli/verify_testing.h"
#include "core/testing.h"
#include "emulator/emulator.h"
#include "kernels/testing/cases.h"
#include "selftest/run.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using Keys = std::vector<std::string>;
using nlohmann::json;

const fs::path kGolden = fs::path(kSourceFolder) / "tests/golden";

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(EmulatedGpu, KernelsAgreeWithTheirReferencesAndEveryRowIsReached) {
  const std::vector<selftest::KernelCases> all = selftest::kernels();
  selftest::Reach reach;
  int kernels = 0;
  for (const selftest::KernelCases& kernel : all) {
    for (const selftest::Result& result :
         selftest::run_kernel_on(Device::cuda_emulated(), kernel, 1, reach)) {
      EXPECT_EQ(result.failure, "") << result.kernel << " by " << result.implementation << " of "
                                    << result.dtype;
      ++kernels;
    }
  }
  for (const selftest::Result& result : reach.failures(all, all))
    ADD_FAILURE() << result.kernel << " " << result.implementation << ": " << result.failure;
  EXPECT_GE(kernels, 100);
}

class InOrder {
 public:
  explicit InOrder(gpu::emulator::Order order) { gpu::emulator::set_order(order); }
  ~InOrder() { gpu::emulator::set_order(gpu::emulator::Order::forward); }
};

void expect_pass(const fs::path& stored, const Keys& keys) {
  expect_verified(stored, Keys{"device=cuda_emulated"} + keys);
}

TEST(EmulatedGpu, HubCasesPass) {
  for (const char* name : {"qwen3moe-tiny", "deepseek3-tiny", "deepseek32-tiny", "gptoss-tiny",
                           "qwen3next-tiny", "qwen2moe-tiny", "olmoe-clip-tiny", "llama4-unrotated-tiny"})
    expect_pass(kGolden / "hf" / name, {});
  expect_pass(kGolden / "hf/qwen3moe-tiny",
              {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"});
  expect_pass(kGolden / "hf/qwen3moe-tiny", {"ranks=2", "ici_expert_parallelism=2",
                                             "ragged_buffer_factor=0.5", "moe_dropless_fallback=layer"});
  expect_pass(kGolden / "hf/deepseek3-tiny",
              {"ranks=8", "ici_data_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"});
}

TEST(EmulatedGpu, LayerCasesPassInEveryOrderOfThreads) {
  int cases = 0;
  for (const char* folder : {"maxtext_moe", "maxtext025_moe"}) {
    for (const auto& item : fs::directory_iterator(kGolden / folder)) {
      for (const auto order :
           {gpu::emulator::Order::forward, gpu::emulator::Order::reverse, gpu::emulator::Order::random}) {
        const InOrder now(order);
        expect_pass(item.path(), {});
      }
      ++cases;
    }
  }
  EXPECT_GE(cases, 20);
}

TEST(EmulatedGpu, TrainingRunsPass) {
  expect_pass(kGolden / "maxtext025_train/deepseek3_mtp_1dev.json", {});
  expect_pass(kGolden / "maxtext_train/deepseek3_qkclip_1dev.json", {});
  expect_pass(kGolden / "maxtext025_train/deepseek3_1dev.json", {"ranks=4", "ici_fsdp_parallelism=4"});
}

// What `generate` picks on a device; rows are few, so weights are multiplied as they are stored.
json tokens_of(const Keys& keys, const std::string& device, const char* model = "qwen3moe-tiny") {
  const std::string file = testing::TempDir() + "/tokens.json";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int status = generate_command(Keys{kGolden / "hf" / model, "tokenizer_type=byte", "prompt=abcdef",
                                           "max_target_length=24", "device=" + device, "--json", file} +
                                      keys);
  testing::internal::GetCapturedStdout();
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << device;
  std::ifstream stream(file);
  return json::parse(stream).at("results").at(0).at("tokens");
}

TEST(EmulatedGpu, TextsAreThoseOfTheCpu) {
  std::set<json> texts;
  for (const char* format : {"stored", "int8", "int4", "int4a", "mxfp4"}) {
    const Keys keys{std::string("weight_format=") + format};
    const json expected = tokens_of(keys, "cpu");
    EXPECT_EQ(expected.size(), 18U) << format;
    EXPECT_EQ(tokens_of(keys, "cuda_emulated"), expected) << format;
    texts.insert(expected);
  }
  EXPECT_GE(texts.size(), 3U) << "the formats make no difference";
}

// Fetched for each token, dense and packed.
TEST(EmulatedGpu, TextsOfWeightsOnTheHostAreThoseOfTheCpu) {
  for (const char* format : {"stored", "int4"}) {
    const Keys keys{std::string("weight_format=") + format};
    const json expected = tokens_of(keys, "cpu");
    for (const char* places : {"weight_places=layers.1.moe.w=host", "parameter_memory_host_offload=true"}) {
      EXPECT_EQ(tokens_of(keys + Keys{places}, "cuda_emulated"), expected) << format << " " << places;
      EXPECT_EQ(tokens_of(keys + Keys{places}, "cpu"), expected) << format << " " << places;
    }
  }
}

// A prompt in pieces: the later ones attend to latents of a cache.
TEST(EmulatedGpu, TextsOfLatentsAreThoseOfTheCpu) {
  const Keys keys{"dtype=bfloat16", "use_chunked_prefill=true", "prefill_chunk_size=4"};
  const json expected = tokens_of(keys, "cpu", "deepseek3-tiny");
  EXPECT_EQ(expected.size(), 18U);
  EXPECT_EQ(tokens_of(keys, "cuda_emulated", "deepseek3-tiny"), expected);
}

}  // namespace
}  // namespace switchyard
