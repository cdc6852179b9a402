// The fault list: whatever happens to one rank, each survivor ends in time, with one line and a nonzero
// status.
#include <chrono>
#include <random>
#include <regex>
#include <set>

#include "core/error.h"
#include "mpirun.h"

namespace switchyard::cli_test {
namespace {

constexpr double kDeadline = 2, kMore = 5;  // seconds

struct Case {
  std::string kind, phase;
  int rank = 1, step = 1, calls_before = 0;
};
std::string to_string(const Case& c) {
  return fmt::format("kind={},rank={},step={},phase={},calls_before={}", c.kind, c.rank, c.step, c.phase,
                     c.calls_before);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// While it lives, children see the fault.
class InEnvironment {
 public:
  explicit InEnvironment(const Case& c) { ::setenv("SWITCHYARD_FAULT", to_string(c).c_str(), 1); }
  ~InEnvironment() { ::unsetenv("SWITCHYARD_FAULT"); }
};

class Faults : public MpiTest {
 protected:
  static Arguments command() {
    return Arguments{"train"} + tiny_model() +
           Arguments{"enable_tensorboard=false", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
                     "steps=3", fmt::format("collective_timeout_seconds={}", kDeadline)};
  }

  // What a run without a fault takes here and now, all but its training being start and end of processes.
  double usual_seconds() const {
    const double begin = now();
    const Finished run = mpirun_noting(4, command());
    EXPECT_EQ(run.status, 0) << run.err;
    std::filesystem::remove(path("statuses"));
    return now() - begin;
  }

  void expect_end(const Case& c, double usual) const {
    SCOPED_TRACE(to_string(c));
    const InEnvironment environment(c);
    const double begin = now();
    const Finished run = mpirun_noting(4, command());
    const double seconds = now() - begin;
    EXPECT_NE(run.status, 0);
    EXPECT_LT(seconds, 2 * usual + kDeadline + kMore + 2 * (launcher_patience() - 1))
        << "a run without a fault takes " << usual << " s";
    const auto ended = statuses();
    for (int rank = 0; rank < 4; ++rank) {
      const bool survivor = rank != c.rank || c.kind == "exception" || c.kind == "mismatch";
      if (survivor) expect_line(run.err, c, rank);
    }
    // mpirun may end the shell that notes the status before it has done so.
    for (const auto& [rank, status] : ended)
      EXPECT_TRUE(status == 1 || rank == c.rank) << "rank " << rank << " ended with " << status << "\n"
                                                 << run.err;
    std::filesystem::remove(path("statuses"));
  }

  // One line of the rank's; it names the collective it was in, the place and who is to blame.
  static void expect_line(const std::string& err, const Case& c, int rank) {
    std::vector<std::string> lines;
    std::istringstream all(err);
    const std::string start = fmt::format("switchyard: rank {}: ", rank);
    for (std::string line; std::getline(all, line);) {
      if (line.starts_with(start)) lines.push_back(line);
    }
    ASSERT_EQ(lines.size(), 1u) << "rank " << rank << "\n" << err;
    const std::regex place(fmt::format(R"((in layer \d|outside the layers), step {} \(\w+\))", c.step));
    EXPECT_TRUE(std::regex_search(lines[0], place)) << lines[0];
    const bool thrower = rank == c.rank && c.kind == "exception";
    const std::regex collective(R"(\w+ over '[a-z+]+')");
    EXPECT_TRUE(thrower || std::regex_search(lines[0], collective)) << lines[0];
    EXPECT_NE(lines[0].find(fmt::format("rank {}", c.rank)), std::string::npos) << lines[0];
  }
};

const std::vector<std::string> kKinds{"kill", "stop", "exception", "mismatch"};
const std::vector<std::string> kPhases{"forward", "dispatch", "backward", "gradients", "optimizer"};

TEST_F(Faults, OfAProcessEndTheRunInEveryPhase) {
  NEEDS_MPIRUN();
  const double usual = usual_seconds();
  for (const std::string& kind : kKinds) {
    for (const std::string& phase : kPhases) expect_end({kind, phase}, usual);
  }
  // Of gathers that were started ahead of their turn.
  for (const char* kind : {"mismatch", "exception"}) expect_end({kind, "backward", 1, 1, 1}, usual);
}

// Any rank, step and call: 200 of them in the soak.
TEST_F(Faults, AnywhereNeverHang) {
  NEEDS_MPIRUN();
  if (std::getenv("SWITCHYARD_SOAK") == nullptr) GTEST_SKIP() << "only with SWITCHYARD_SOAK set (make soak)";
  const double usual = usual_seconds();
  std::mt19937 random(7);
  const auto draw = [&](std::size_t n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 200; ++round) {
    const Case c{kKinds[static_cast<std::size_t>(draw(4))], kPhases[static_cast<std::size_t>(draw(5))],
                 draw(4), draw(3), draw(2)};
    expect_end(c, usual);
    if (HasFailure()) return;
  }
}

// Threads of one process cannot be killed one by one; what can happen to them ends in the same way, with one
// line.
TEST_F(Faults, OfAThreadEndTheRun) {
  const std::vector<Case> cases{{"exception", "dispatch"},
                                {"exception", "gradients"},
                                {"mismatch", "forward"},
                                {"mismatch", "optimizer"},
                                {"sleep", "backward"}};
  for (std::size_t i = 0; i < 2 * cases.size(); ++i) {
    const Case& c = cases[i / 2];
    const Arguments overlap{i % 2 == 0 ? "overlap_communication=off" : "overlap_communication=on"};
    SCOPED_TRACE(to_string(c) + " " + overlap[0]);
    const InEnvironment environment(c);
    const double begin = now();
    const Finished finished = run(command() + Arguments{"ranks=4"} + overlap);
    EXPECT_EQ(finished.status, 1);
    EXPECT_LT(now() - begin, kDeadline + 2 * kMore);
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_TRUE(std::regex_search(finished.err,
                                  std::regex(R"(^switchyard: rank \d: \[comm\] .*step 1 \()" + c.phase)))
        << finished.err;
    EXPECT_NE(finished.err.find("rank 1"), std::string::npos) << finished.err;
  }
}

// Of two processes with two ranks each, one is killed: the other names both of its ranks.
TEST_F(Faults, OfAProcessOfThreads) {
  NEEDS_MPIRUN();
  const InEnvironment environment({"kill", "dispatch", 3});
  const Finished run = mpirun_noting(2, command() + Arguments{"ranks=4"});
  EXPECT_NE(run.status, 0);
  for (const auto& [process, status] : statuses()) EXPECT_NE(status, 0) << process;
  EXPECT_TRUE(std::regex_search(
      run.err, std::regex(R"(switchyard: rank [01]: \[comm\] .* because ranks 2 to 3 \(process 1\) died)")))
      << run.err;
  EXPECT_EQ(run.err.find("switchyard: "), run.err.rfind("switchyard: ")) << run.err;
}

// A rank's NaN is skipped by all, until there are too many in a row.
TEST_F(Faults, NumbersThatAreNoneSkipStepsOnAllRanks) {
  ::setenv("SWITCHYARD_FAULT", "kind=nan,rank=2,step=1,phase=gradients,steps=3", 1);
  const Arguments keys{"ranks=4", "steps=5"};
  const std::vector<nlohmann::json> lines = train(Arguments{"ici_fsdp_parallelism=4"} + keys);
  ASSERT_EQ(lines.size(), 5u);
  for (std::size_t step = 0; step < 5; ++step)
    EXPECT_EQ(lines[step]["learning/skipped_steps"].get<std::size_t>(), std::min<std::size_t>(step, 3));
  for (const std::size_t step : {1, 2, 3}) {
    EXPECT_TRUE(lines[step]["learning/raw_grad_norm"].is_null());
    EXPECT_EQ(lines[step]["learning/param_norm"], lines[0]["learning/param_norm"]);
  }
  EXPECT_NE(lines[4]["learning/param_norm"], lines[0]["learning/param_norm"]);
  EXPECT_EQ(nlohmann::json::parse(read("out/run/summary.json"))["skipped_steps"], 3);

  const Finished stopped = run(command() + keys + Arguments{"max_consecutive_bad_steps=2"});
  EXPECT_EQ(stopped.status, 1);
  EXPECT_NE(stopped.err.find("steps 1 to 2 were bad, the last because the gradient is not a number"),
            std::string::npos)
      << stopped.err;
  EXPECT_EQ(std::count(stopped.err.begin(), stopped.err.end(), '\n'), 1) << stopped.err;

  ::setenv("SWITCHYARD_FAULT", "kind=nan,rank=2,step=1,phase=forward", 1);
  const Finished aborted = run(command() + keys);
  EXPECT_EQ(aborted.status, 1);
  EXPECT_NE(aborted.err.find("loss is not a number at step 1 (abort_on_nan_loss=true)"), std::string::npos);
  const Finished goes_on = run(command() + keys + Arguments{"abort_on_nan_loss=false"});
  EXPECT_EQ(goes_on.status, 0) << goes_on.err;
  EXPECT_NE(goes_on.out.find("step 1 skipped: the loss is not a number"), std::string::npos) << goes_on.out;
  ::unsetenv("SWITCHYARD_FAULT");
}

// One bit of one copy among three processes; none without a fault.
TEST_F(Faults, ACorruptCopyOfAWeightIsNamed) {
  NEEDS_MPIRUN();
  const Arguments keys = Arguments{"train"} + tiny_model() +
                         Arguments{"ici_data_parallelism=3", "ici_fsdp_parallelism=1", "steps=4",
                                   "weight_digest_interval=2", "enable_tensorboard=false"};
  const Finished clean = mpirun(3, keys);
  EXPECT_EQ(clean.status, 0) << clean.err;
  ::setenv("SWITCHYARD_FAULT", "kind=flip,rank=1,step=3,phase=optimizer", 1);
  const Finished corrupt = mpirun(3, keys);
  ::unsetenv("SWITCHYARD_FAULT");
  EXPECT_NE(corrupt.status, 0);
  EXPECT_NE(corrupt.err.find("weight embedding of rank 1 differs from that of rank 0, 2 after step 3"),
            std::string::npos)
      << corrupt.err;
}

TEST_F(Faults, AreRefusedWhenUnreadable) {
  for (const char* text : {"kind=kil,phase=forward", "kind=kill", "rank=x,phase=forward", "forward"}) {
    ::setenv("SWITCHYARD_FAULT", text, 1);
    expect_refused(Arguments{"train"} + tiny_model(), {"SWITCHYARD_FAULT", "phase="});
  }
  ::unsetenv("SWITCHYARD_FAULT");
}

}  // namespace
}  // namespace switchyard::cli_test
