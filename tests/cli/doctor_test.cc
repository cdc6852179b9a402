// The report on a machine and a build.
#include "child.h"

namespace switchyard::cli_test {
namespace {

using nlohmann::json;

class Doctor : public ProgramTest {};

TEST_F(Doctor, SaysWhatThereIs) {
  const Finished done = run({"doctor", "--quick", "--json", "d.json"});
  ASSERT_EQ(done.status, 0) << done.err;
  EXPECT_EQ(done.err, "");
  std::map<std::string, json> parts;
  const json report = json::parse(read("d.json"));
  for (const json& part : report["parts"]) parts[part["name"]] = part;
  for (const char* name :
       {"version", "cpu", "cores", "numa", "memory", "huge pages", "gpu", "nccl", "mpi", "grammars"}) {
    ASSERT_TRUE(parts.contains(name)) << name;
    const std::string state = parts[name]["state"];
    EXPECT_TRUE(state == "ok" || state == "missing" || state == "unknown") << state;
    EXPECT_NE(parts[name]["what"], "") << name;
    EXPECT_NE(done.out.find(name), std::string::npos) << done.out;
  }
  EXPECT_EQ(parts["version"]["what"], report["version"]);
}

// A part that is there may be required. A missing one is named on standard error.
TEST_F(Doctor, Requires) {
  ASSERT_EQ(run({"doctor", "--quick", "--json", "d.json"}).status, 0);
  const json report = json::parse(read("d.json"));
  for (const json& part : report["parts"]) {
    const std::string name = part["name"];
    if (name != "cpu" && name != "gpu" && name != "mpi" && name != "grammars") continue;
    const Finished done = run({"doctor", "--quick", "--require", name});
    EXPECT_EQ(done.status, part["state"] == "ok" ? 0 : 1) << name;
    EXPECT_EQ(done.err.empty(), part["state"] == "ok") << done.err;
  }
  expect_refused({"doctor", "--require", "gpus"}, {"gpus", "gpu"});
  expect_refused({"doctor", "steps=3"}, {"steps=3"});
}

}  // namespace
}  // namespace switchyard::cli_test
