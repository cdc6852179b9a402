// The selftest of the built program, of kernels that take little time.
#include "child.h"

namespace switchyard::cli_test {
namespace {

using SelftestProgram = ProgramTest;

TEST_F(SelftestProgram, AgreesOnThisMachine) {
  const Finished finished =
      run({"selftest", "rms_norm", "attention", "rope_tables", "--json", "results.json"});
  EXPECT_EQ(finished.status, 0) << finished.out << finished.err;
  EXPECT_EQ(finished.err, "");
  EXPECT_NE(finished.out.find("agree with the reference"), std::string::npos) << finished.out;
  const auto written = nlohmann::json::parse(read("results.json"));
  bool portable = false;
  for (const auto& result : written["results"]) {
    EXPECT_EQ(result["pass"], true) << result;
    EXPECT_GT(result["cases"], 0) << result;
    portable = portable || result["implementation"] == "portable";
  }
  EXPECT_TRUE(portable);
}

TEST_F(SelftestProgram, CommandLine) {
  expect_refused({"selftest", "frobnicate"}, {"frobnicate", "gmm_pair", "rank_sum"});
  expect_refused({"selftest", "steps=3"}, {"steps", "threads, seed and device"});
  expect_refused({"selftest", "--json", "nowhere/results.json"}, {"--json", "nowhere"});
  const Finished help = run({"selftest", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.out.find("switchyard selftest gmm attention --json"), std::string::npos);
}

}  // namespace
}  // namespace switchyard::cli_test
