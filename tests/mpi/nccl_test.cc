// Several processes with a GPU each, emulated, and the stand-in for NCCL between them: the same bits as ranks
// of one process, and faults that end the run in time. And NCCL itself where this machine has it.
#include <dlfcn.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "mpirun.h"

namespace switchyard::cli_test {
namespace {

namespace fs = std::filesystem;

Arguments on_gpus(const std::string& more = "") {
  Arguments arguments =
      Arguments{"train"} + tiny_model() + Arguments{"device=cuda_emulated", "enable_tensorboard=false"};
  std::istringstream words(more);
  for (std::string word; words >> word;) arguments.push_back(word);
  return arguments;
}

class Nccl : public MpiTest {
 protected:
  Nccl() { ::setenv("SWITCHYARD_NCCL", stand_in().c_str(), 1); }
  ~Nccl() override {
    for (const char* variable : {"SWITCHYARD_NCCL", "SWITCHYARD_STAND_IN_VERSION", "SWITCHYARD_FAULT"})
      ::unsetenv(variable);
  }
  static std::string stand_in() { return fs::path(program()).parent_path() / "libnccl_stand_in.so"; }

  // What stops these tests, beside what stops others: a build whose kernels are a real GPU's.
  std::string missing() const {
    if (const std::string reason = mpirun_missing(); !reason.empty()) return reason;
    const Finished emulated = run(on_gpus("steps=1 run_name=emulated"));
    return emulated.status == 0 ? "" : "no emulated GPU: " + emulated.err;
  }

  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  static std::vector<std::string> lines_of(const std::string& text, const std::string& start) {
    std::vector<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) {
      if (line.starts_with(start)) lines.push_back(line);
    }
    return lines;
  }
  // All processes of a run that cannot begin end with 2, and one of them says why.
  void expect_one_line(const Finished& run, const std::vector<std::string>& words) const {
    EXPECT_EQ(run.status, 2) << run.err;
    const auto lines = lines_of(run.err, "switchyard: ");
    ASSERT_EQ(lines.size(), 1u) << run.err;
    for (const std::string& word : words) EXPECT_NE(lines[0].find(word), std::string::npos) << lines[0];
    EXPECT_FALSE(fs::exists(path("out/refused")));
  }
};

#define NEEDS_EMULATED_GPUS()                                  \
  if (const std::string reason = missing(); !reason.empty()) { \
    GTEST_SKIP() << reason;                                    \
  }                                                            \
  static_assert(true)

// The suite of parallel/comm/device_collectives_test.cc; /0, /1 and /2 are its cases of 2, 3 and 4 ranks.
TEST_F(Nccl, CollectivesKeepTheirPromises) {
  NEEDS_EMULATED_GPUS();
  const std::string suite = fs::path(program()).parent_path() / "parallel_test";
  for (const int processes : {2, 3, 4}) {
    const std::string filter = "--gtest_filter=Ranks/DeviceCollectives.*/" + std::to_string(processes - 2);
    const Finished run = execute("mpirun", launch(processes) + Arguments{suite, filter, "--gtest_color=no"});
    EXPECT_EQ(run.status, 0) << processes << " processes\n" << run.out << run.err;
    EXPECT_EQ(run.out.find("SKIPPED"), std::string::npos) << run.out;
    std::size_t passed = 0;
    for (std::size_t at = 0; (at = run.out.find("[  PASSED  ] 7 tests", at)) != std::string::npos; ++at)
      ++passed;
    EXPECT_EQ(passed, static_cast<std::size_t>(processes)) << run.out;
  }
}

TEST_F(Nccl, TrainsLikeRanksOfOneProcess) {
  NEEDS_EMULATED_GPUS();
  const std::vector<std::pair<int, std::string>> layouts{
      {2, "ici_expert_parallelism=2"},
      {2, "ici_fsdp_parallelism=2 dtype=bfloat16 weight_dtype=bfloat16"},
      {4, "ici_expert_parallelism=2 ici_fsdp_parallelism=2"},
      {4, "ici_expert_parallelism=4 use_ring_of_experts=true dtype=bfloat16"},
      {4, "ici_tensor_parallelism=2 ici_data_parallelism=2 dtype=bfloat16"},
      {4, "ici_fsdp_parallelism=2 ici_pipeline_parallelism=2"}};
  for (const auto& [processes, layout] : layouts) {
    SCOPED_TRACE(layout);
    const Arguments command = on_gpus(layout);
    const Arguments ranks{"ranks=" + std::to_string(processes)};
    const Finished one = run(command + ranks + Arguments{"run_name=one"});
    ASSERT_EQ(one.status, 0) << one.err;
    const Finished several = mpirun(processes, command + Arguments{"run_name=several"});
    EXPECT_EQ(several.status, 0) << several.err;
    EXPECT_EQ(steps_of("several"), steps_of("one"));
    EXPECT_FALSE(steps_of("one").empty());
    EXPECT_NE(several.out.find("NCCL 2.28.9 (" + stand_in() + ")"), std::string::npos) << several.out;
  }
}

// Transfers that are started ahead, of weights and of chunks of tokens, and the trace of them.
TEST_F(Nccl, OverlapChangesNoBit) {
  NEEDS_EMULATED_GPUS();
  const std::vector<std::pair<int, std::string>> layouts{
      {2, "ici_fsdp_parallelism=2 base_num_decoder_layers=3 dtype=bfloat16"},
      {4, "ici_expert_parallelism=2 ici_fsdp_parallelism=2 num_moe_token_chunks=2"},
      {4, "ici_expert_parallelism=2 ici_fsdp_parallelism=2 use_ring_of_experts=true num_moe_emb_chunks=2"}};
  for (const auto& [processes, layout] : layouts) {
    SCOPED_TRACE(layout);
    const Arguments command = on_gpus(layout);
    const Finished off = mpirun(processes, command + Arguments{"run_name=off", "overlap_communication=off"});
    ASSERT_EQ(off.status, 0) << off.err;
    const Finished on =
        mpirun(processes, command + Arguments{"run_name=on", "overlap_communication=on", "profiler=xplane"});
    ASSERT_EQ(on.status, 0) << on.err;
    EXPECT_FALSE(steps_of("off").empty());
    EXPECT_EQ(steps_of("on"), steps_of("off"));
    const Arguments ranks{"ranks=" + std::to_string(processes), "overlap_communication=off"};
    ASSERT_EQ(run(command + ranks + Arguments{"run_name=one"}).status, 0);
    EXPECT_EQ(steps_of("on"), steps_of("one"));

    std::map<std::string, int> events;
    const auto trace = nlohmann::json::parse(read("out/on/trace.json"));
    for (const auto& event : trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      const std::string category = event["cat"];
      ++events[category];
      EXPECT_EQ(category == "transfer", event["tid"] == 3) << event;
      EXPECT_EQ(category == "kernel", event["tid"] == 2) << event;
      EXPECT_NE(event["tid"], 1) << "a progress thread: " << event;
    }
    for (const char* category : {"transfer", "kernel", "ahead", "collective"})
      EXPECT_GT(events[category], 0) << category;
  }
}

TEST_F(Nccl, GoesOnFromACheckpoint) {
  NEEDS_EMULATED_GPUS();
  const Arguments command =
      on_gpus("ici_expert_parallelism=2 ici_data_parallelism=2 weight_digest_interval=1");
  const Finished whole = run(command + Arguments{"run_name=whole", "steps=4", "ranks=4"});
  ASSERT_EQ(whole.status, 0) << whole.err;
  for (const char* steps : {"steps=2", "steps=4"}) {
    const Finished part = mpirun(4, command + Arguments{"run_name=parts", "enable_checkpointing=true", steps,
                                                        "learning_rate_schedule_steps=4"});
    ASSERT_EQ(part.status, 0) << part.err;
  }
  EXPECT_FALSE(steps_of("whole").empty());
  EXPECT_EQ(steps_of("parts"), steps_of("whole"));
}

TEST_F(Nccl, AFaultEndsTheRunInTime) {
  NEEDS_EMULATED_GPUS();
  constexpr double kSeconds = 2 + 5;  // the deadline, and what ends may take
  const Arguments command =
      on_gpus("ici_expert_parallelism=2 ici_fsdp_parallelism=2 collective_timeout_seconds=2");
  const double begin = now();
  ASSERT_EQ(mpirun(4, command).status, 0);
  const double usual = now() - begin;
  for (const std::string kind : {"kill", "stop", "sleep", "exception", "mismatch"}) {
    for (const std::string phase : {"forward", "dispatch", "backward", "gradients"}) {
      const std::string fault = "kind=" + kind + ",rank=1,step=1,phase=" + phase;
      SCOPED_TRACE(fault);
      ::setenv("SWITCHYARD_FAULT", fault.c_str(), 1);
      const double start = now();
      const Finished run = mpirun_noting(4, command);
      EXPECT_LT(now() - start, 2 * usual + kSeconds + 2 * (launcher_patience() - 1));
      EXPECT_NE(run.status, 0);
      for (int rank = 0; rank < 4; ++rank) {
        if (rank == 1 && kind != "exception" && kind != "mismatch") continue;
        const auto lines = lines_of(run.err, "switchyard: rank " + std::to_string(rank) + ": ");
        ASSERT_EQ(lines.size(), 1u) << "rank " << rank << "\n" << run.err;
        EXPECT_NE(lines[0].find("rank 1"), std::string::npos) << lines[0];
        EXPECT_TRUE(std::regex_search(lines[0], std::regex(R"(step 1 \()"))) << lines[0];
      }
      for (const auto& [rank, status] : statuses()) EXPECT_TRUE(status == 1 || rank == 1) << rank << run.err;
      fs::remove(path("statuses"));
    }
  }
}

TEST_F(Nccl, AProcessThatStopsOrDiesInATransferIsNamed) {
  NEEDS_EMULATED_GPUS();
  for (const std::string how : {"stop", "kill"}) {
    SCOPED_TRACE(how);
    ::setenv("SWITCHYARD_STAND_IN_FAULT", (how + ",rank=1,group=30").c_str(), 1);
    const double start = now();
    const Finished run = mpirun_noting(4, on_gpus("ici_fsdp_parallelism=4 collective_timeout_seconds=2"));
    ::unsetenv("SWITCHYARD_STAND_IN_FAULT");
    EXPECT_LT(now() - start, 15);
    EXPECT_NE(run.status, 0);
    for (const int rank : {0, 2, 3}) {
      const auto lines = lines_of(run.err, "switchyard: rank " + std::to_string(rank) + ": ");
      ASSERT_EQ(lines.size(), 1u) << "rank " << rank << "\n" << run.err;
      EXPECT_NE(lines[0].find("rank 1 (process 1)"), std::string::npos) << lines[0];
      EXPECT_NE(lines[0].find("over 'fsdp'"), std::string::npos) << lines[0];
    }
    fs::remove(path("statuses"));
  }
}

TEST_F(Nccl, WhatCannotBeginSaysWhyOnce) {
  NEEDS_EMULATED_GPUS();
  const Arguments command = on_gpus("run_name=refused");
  expect_one_line(mpirun(2, command + Arguments{"ranks=4"}), {"[device]", "one rank a process", "got 2"});
  ::setenv("SWITCHYARD_STAND_IN_VERSION", "30000", 1);
  expect_one_line(mpirun(2, command), {"[nccl]", "version code 30000"});
  ::unsetenv("SWITCHYARD_STAND_IN_VERSION");
  ::setenv("SWITCHYARD_NCCL", "/nowhere/libnccl.so.2", 1);
  expect_one_line(mpirun(2, command), {"[nccl]", "/nowhere/libnccl.so.2"});
  ::unsetenv("SWITCHYARD_NCCL");
  expect_one_line(mpirun(2, command), {"[nccl]", "SWITCHYARD_NCCL=PATH"});
}

// NCCL refuses two processes without a GPU each; that it says so shows that it was loaded and asked.
TEST_F(Nccl, TheLibraryItselfIsLoadedAndAsked) {
  NEEDS_EMULATED_GPUS();
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << "no NCCL here: " << ::dlerror();
  ::setenv("SWITCHYARD_NCCL", "libnccl.so.2", 1);
  const Finished run = mpirun_noting(2, on_gpus("ici_fsdp_parallelism=2 collective_timeout_seconds=20"));
  EXPECT_TRUE(std::regex_search(run.out, std::regex(R"(NCCL 2\.\d+\.\d+ \()"))) << run.out << run.err;
  EXPECT_NE(run.status, 0);
  const auto lines = lines_of(run.err, "switchyard: rank 0: ");
  ASSERT_EQ(lines.size(), 1u) << run.err;
  EXPECT_NE(lines[0].find("[nccl]"), std::string::npos) << lines[0];
}

}  // namespace
}  // namespace switchyard::cli_test
