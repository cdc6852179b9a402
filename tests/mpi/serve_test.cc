// A server whose ranks are processes: process 0 listens, and all end when they are told to.
#include <signal.h>

#include <thread>

#include "mpirun.h"
#include "serve/http/testing.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class MpiServing : public MpiTest {
 protected:
  // To the program's processes that this test started.
  void signal_all(int signal) const {
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string process = entry.path().filename().string();
      if (process.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream name(entry.path() / "comm"), words(entry.path() / "cmdline");
      std::string comm, line;
      std::getline(name, comm);
      std::getline(words, line);
      if (comm == "switchyard" && line.find(path("where.json")) != std::string::npos)
        ::kill(std::stoi(process), signal);
    }
  }
};

TEST_F(MpiServing, AnswersAndEnds) {
  NEEDS_MPIRUN();
  train_bytes();
  const Finished alone =
      run({"generate", "out/run", "prompt= to ", "max_target_length=16", "--json", "g.json"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  Finished served;
  std::thread launcher([&] {
    served = mpirun_noting(
        2, {"serve", "out/run", "--port", "0", "--json", path("where.json"), "ici_expert_parallelism=2"});
  });
  const json place = when_written("where.json");
  EXPECT_TRUE(place.contains("port"));
  if (place.contains("port")) {
    const http::Client client(place["port"]);
    const json request{{"prompt", " to "}, {"max_tokens", 12}};
    const auto answer = client.post("/v1/completions", request.dump());
    EXPECT_EQ(answer.status, 200);
    if (answer.status == 200) {
      EXPECT_EQ(json::parse(answer.body)["choices"][0]["text"],
                json::parse(read("g.json"))["results"][0]["text"]);
    }
  }
  signal_all(SIGTERM);
  launcher.join();
  EXPECT_EQ(served.status, 0) << served.err;
  EXPECT_EQ(statuses(), (std::map<int, int>{{0, 0}, {1, 0}}));
  EXPECT_NE(served.err.find("stopped: 1 texts finished"), std::string::npos) << served.err;
}

}  // namespace
}  // namespace switchyard::cli_test
