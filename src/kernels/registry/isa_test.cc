#include "kernels/registry/isa.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

// The kernel's list of what the processor can do, which nothing in the engine reads.
bool processor_says(const std::string& wanted) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream flags(line);
    for (std::string flag; flags >> flag;) {
      if (flag == wanted) return true;
    }
    return false;
  }
  return false;
}

// Tests of kernels loop over every_isa(). Fewer sets than the processor has would
// be kernels that nothing tests.
TEST(EveryIsa, HasAllThatTheProcessorHas) {
  std::string reached;
  for (const Isa isa : kernel_test::every_isa()) reached += " " + std::string(name_of(isa));
  std::printf("instruction sets that kernels are tested on:%s\n", reached.c_str());
  const auto expect = [&](const char* flag, Isa isa) {
    if (!processor_says(flag)) return;
    EXPECT_GE(machine_isa(), isa) << "the processor has " << flag << "; reached:" << reached;
  };
  expect("avx2", Isa::avx2);
  expect("avx512vl", Isa::avx512);
  expect("avx512_bf16", Isa::avx512_bf16);
  expect("amx_bf16", Isa::amx);
}

}  // namespace
}  // namespace switchyard
