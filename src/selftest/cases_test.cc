// Tests every kernel's cases on this machine: each table row is reached and agrees with the reference.
#include <gtest/gtest.h>

#include "selftest/report.h"
#include "selftest/run.h"

namespace switchyard::selftest {
namespace {

TEST(KernelCases, AgreeWithTheReferenceAndReachEveryRow) {
  const std::vector<KernelCases> all = kernels();
  Reach reach;
  std::int64_t cases = 0;
  for (const KernelCases& kernel : all) {
    for (const Result& result : run_kernel(kernel, 2, 1, reach)) {
      EXPECT_TRUE(result.pass()) << table_row(result);
      cases += result.cases;
    }
  }
  for (const Result& result : reach.failures(all, all)) ADD_FAILURE() << table_row(result);
  EXPECT_GT(cases, active_isa() > Isa::ref ? 1000 : 0);
}

}  // namespace
}  // namespace switchyard::selftest
