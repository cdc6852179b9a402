// Checkpoints that several processes write together.
#include <csignal>
#include <set>

#include "mpirun.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;

class MpiCheckpoints : public MpiTest {
 protected:
  static Arguments command(const std::string& run, const Arguments& more = {}) {
    return Arguments{"train"} + tiny_model() +
           Arguments{"enable_checkpointing=true", "enable_tensorboard=false",
                     "checkpoint_period=4",       "steps=10",
                     "per_device_batch_size=2",   "run_name=" + run} +
           more;
  }
  std::string bytes(const std::string& run, int step, const std::string& kind) const {
    return read("out/" + run + "/checkpoints/" + std::to_string(step) + "/" + kind + "-00001.safetensors");
  }
  void expect_same(const std::string& a, const std::string& b, int step) const {
    for (const char* kind : {"weights", "optimizer"}) {
      EXPECT_NE(bytes(a, step, kind), "");
      EXPECT_TRUE(bytes(a, step, kind) == bytes(b, step, kind)) << kind << " of " << a << " and " << b;
    }
  }
};

const Arguments kMesh{"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"};

TEST_F(MpiCheckpoints, EqualThoseOfThreads) {
  NEEDS_MPIRUN();
  for (const Arguments& more : {Arguments{},
                                Arguments{"ici_pipeline_parallelism=2", "ici_expert_parallelism=1",
                                          "logits_via_embedding=true", "weight_digest_interval=1"},
                                Arguments{"async_checkpointing=false", "opt_type=muon"}}) {
    const Finished threads = run(command("threads", kMesh + more));
    ASSERT_EQ(threads.status, 0) << threads.err;
    for (const int processes : {4, 2}) {
      if (processes == 2 && !more.empty() && std::getenv("SWITCHYARD_SOAK") == nullptr) continue;
      const Finished done = mpirun(processes, command("processes", kMesh + more));
      ASSERT_EQ(done.status, 0) << done.err;
      for (const int step : {0, 4, 8, 10}) expect_same("threads", "processes", step);
      // What is missing is made again, by another number of processes.
      for (const char* last : {"8", "10"}) fs::remove_all(path("out/processes/checkpoints/") + last);
      const Finished again = mpirun(6 - processes, command("processes", kMesh + more));
      ASSERT_EQ(again.status, 0) << again.err;
      EXPECT_NE(again.out.find("going on after step 4"), std::string::npos) << again.out;
      expect_same("threads", "processes", 10);
      EXPECT_EQ(steps_of("threads"), steps_of("processes"));
      fs::remove_all(path("out/processes"));
    }
    fs::remove_all(path("out/threads"));
  }
}

// A damaged tensor is passed over by all, whoever reads it.
TEST_F(MpiCheckpoints, ADamagedNewestIsPassedOver) {
  NEEDS_MPIRUN();
  ASSERT_EQ(mpirun(4, command("run", kMesh)).status, 0);
  const std::string name = "out/run/checkpoints/10/optimizer-00001.safetensors";
  std::string damaged = read(name);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write(name, damaged);
  const Finished again = mpirun(4, command("run", kMesh + Arguments{"steps=12"}));
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.out.find("10/optimizer-00001.safetensors: tensor"), std::string::npos) << again.out;
  EXPECT_NE(again.out.find("going on after step 8"), std::string::npos) << again.out;
}

// One process gets the signal; all stop after the same step, which is saved.
TEST_F(MpiCheckpoints, ASignalToOneProcessStopsAll) {
  NEEDS_MPIRUN();
  const std::string once =
      R"(if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then (sleep 4; kill -TERM $$) & fi; exec "$0" "$@")";
  const Arguments launched = launch(4) + Arguments{"sh", "-c", once, program()} +
                             command("run", kMesh + Arguments{"steps=1000000", "checkpoint_period=1000000"});
  const Finished stopped = execute("mpirun", launched);
  EXPECT_EQ(stopped.status, 75) << stopped.err;
  EXPECT_NE(stopped.out.find("stopped by SIGTERM after"), std::string::npos) << stopped.out;
  const std::string steps = steps_of("run");
  const auto count = std::count(steps.begin(), steps.end(), '\n');
  EXPECT_TRUE(fs::exists(path("out/run/checkpoints/" + std::to_string(count) + "/complete")));
}

}  // namespace
}  // namespace switchyard::cli_test
