// `switchyard bench` as a user meets it.
#include "child.h"

namespace switchyard::cli_test {
namespace {

using BenchCommand = ProgramTest;

TEST_F(BenchCommand, PrintsATableAndWritesJson) {
  const Finished finished = run({"bench", "gmm", "tokens=16", "emb=32", "mlp=32", "experts=4", "topk=2",
                                 "skew=zipf", "copy_mib=16", "--seconds", "0.001", "--json", "gmm.json"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_NE(finished.out.find("roofline"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("drhs"), std::string::npos) << finished.out;
  std::ifstream file(path("gmm.json"));
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json.at("results").size(), 5u + 3u);
  EXPECT_EQ(json.at("results").back().at("shape").at("skew"), "zipf");
}

TEST_F(BenchCommand, HelpNamesEveryCaseAndKey) {
  const Finished finished = run({"bench", "--help"});
  EXPECT_EQ(finished.status, 0);
  for (const char* word : {"peak", "gmm", "moe", "attention", "loss", "optimizer", "checkpoint", "sampling",
                           "comm", "train", "generate", "tokens=", "skew=", "threads=", "--json", "Examples"})
    EXPECT_NE(finished.out.find(word), std::string::npos) << word;
}

TEST_F(BenchCommand, WrongInputIsOneLine) {
  expect_refused({"bench"}, {"expected a case", "peak", "train"});
  expect_refused({"bench", "gm"}, {"gm", "nearest is gmm"});
  expect_refused({"bench", "gmm", "--jsn", "x"}, {"--jsn", "--json"});
  expect_refused({"bench", "gmm", "--json"}, {"--json needs the name of a file"});
  expect_refused({"bench", "gmm", "--seconds", "x"}, {"--seconds x"});
  expect_refused({"bench", "gmm", "--json", "nowhere/x.json"}, {"nowhere/x.json", "nowhere"});
  expect_refused({"bench", "gmm", "experts=2", "topk=3"}, {"topk=3", "2 experts"});
  expect_refused({"bench", "train", "stepz=3"}, {"stepz", "steps"});
}

}  // namespace
}  // namespace switchyard::cli_test
