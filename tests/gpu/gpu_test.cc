// The kernels of a GPU, run by the emulator: each against its scalar twin, and whole models, training steps
// and generation by them, against stored numbers and against the CPU's.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/generate_command.h"
#include "cli/verify_command.h"
#include "core/testing.h"
#include "kernels/gpu/emulator.h"
#include "selftest/kernel.h"
#include "selftest/run.h"
#include "train/run.h"

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

TEST(EmulatedGpu, KernelsAgreeWithTheirTwins) {
  int kernels = 0;
  for (const selftest::Kernel& kernel : selftest::kernels()) {
    for (const selftest::Result& result : selftest::run_kernel_on(Device::cuda_emulated(), kernel, 1)) {
      EXPECT_EQ(result.failure, "") << result.kernel << " of " << result.dtype;
      ++kernels;
    }
  }
  EXPECT_GE(kernels, 100);
}

class InOrder {
 public:
  explicit InOrder(gpu::emulator::Order order) { gpu::emulator::set_order(order); }
  ~InOrder() { gpu::emulator::set_order(gpu::emulator::Order::forward); }
};

void expect_pass(const fs::path& stored, const Keys& keys) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  int status = -1;
  std::string failure;
  try {
    status = verify_command(Keys{stored, "device=cuda_emulated"} + keys);
  } catch (const Error& error) {
    failure = error.what();
  }
  const std::string out = testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << stored << " " << testing::PrintToString(keys) << "\n" << failure << "\n" << out;
}

TEST(EmulatedGpu, HubCasesPass) {
  for (const char* name : {"qwen3moe-tiny", "deepseek3-tiny", "gptoss-tiny", "llama4-tiny", "qwen3next-tiny"})
    expect_pass(kGolden / "hf" / name, {});
  expect_pass(kGolden / "hf/qwen3moe-tiny",
              {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"});
  expect_pass(kGolden / "hf/deepseek3-tiny",
              {"ranks=8", "ici_data_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"});
}

TEST(EmulatedGpu, LayerCasesPassInEveryOrderOfThreads) {
  int cases = 0;
  for (const auto& item : fs::directory_iterator(kGolden / "maxtext_moe")) {
    for (const auto order :
         {gpu::emulator::Order::forward, gpu::emulator::Order::reverse, gpu::emulator::Order::random}) {
      const InOrder now(order);
      expect_pass(item.path(), {});
    }
    ++cases;
  }
  EXPECT_GE(cases, 8);
}

TEST(EmulatedGpu, TrainingRunsPass) {
  expect_pass(kGolden / "maxtext_train/deepseek3_1dev.json", {});
  expect_pass(kGolden / "maxtext_train/deepseek3_qkclip_1dev.json", {});
  expect_pass(kGolden / "maxtext_train/deepseek3_1dev.json", {"ranks=4", "ici_fsdp_parallelism=4"});
}

}  // namespace
}  // namespace switchyard
