// Runs the built program under mpirun, as child processes of the test.
#pragma once

#include <cstdlib>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "../cli/child.h"

// Skips the test with a reason when there is no mpirun, or the build has no MPI or a sanitizer (whose reports
// about MPI's own libraries would hide ours).
#define NEEDS_MPIRUN()                                                \
  if (const std::string reason = mpirun_missing(); !reason.empty()) { \
    GTEST_SKIP() << reason;                                           \
  }                                                                   \
  static_assert(true)

namespace switchyard::cli_test {

class MpiTest : public ProgramTest {
 protected:
  static std::string mpirun_missing() {
    if (!std::string(SWITCHYARD_SANITIZE).empty())
      return "not under sanitizers: MPI's libraries are not built with them";
    if (SWITCHYARD_WITH_MPI == 0) return "this build has no MPI (libopenmpi-dev)";
    if (std::system("mpirun --version >/dev/null 2>&1") != 0) return "no mpirun here (openmpi-bin)";
    return {};
  }

  // Seconds that the launcher gives a process to end before it kills it, at most twice in a run. In hours of
  // tests a machine sometimes leaves a process without a core for a second.
  static int launcher_patience() { return std::getenv("SWITCHYARD_SOAK") == nullptr ? 1 : 3; }
  // The user's command, with flags to run here: as root, with more processes than cores.
  static Arguments launch(int processes) {
    return {"--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--mca",
            "odls_base_sigkill_timeout",
            std::to_string(launcher_patience()),
            "-n",
            std::to_string(processes)};
  }
  Finished mpirun(int processes, const Arguments& arguments) const {
    return execute("mpirun", launch(processes) + Arguments{program()} + arguments);
  }

  // Runs mpirun with each process under a shell that records its exit status; statuses() returns them.
  Finished mpirun_noting(int processes, const Arguments& arguments) const {
    const char* note = R"(trap : TERM; "$0" "$@"; echo "$OMPI_COMM_WORLD_RANK $?" >> statuses)";
    return execute("mpirun", launch(processes) + Arguments{"sh", "-c", note, program()} + arguments);
  }
  std::map<int, int> statuses() const {
    std::map<int, int> all;
    std::ifstream file(path("statuses"));
    for (int process = 0, status = 0; file >> process >> status;) all[process] = status;
    return all;
  }

  // Runs mpirun with a separate standard-error file for
  // each process; words_of_program() returns the text.
  Finished mpirun_listening(int processes, const Arguments& arguments) const {
    for (int process = 0; process < processes; ++process) write(error_file(process), "");
    const char* note = R"(exec "$0" "$@" 2>>"stderr.$OMPI_COMM_WORLD_RANK")";
    return execute("mpirun", launch(processes) + Arguments{"sh", "-c", note, program()} + arguments);
  }
  // The text that mpirun_listening()'s processes wrote to standard error, without lines of MPI itself:
  // "[host:12] ..." or "[host][[34,1],0][file:line:function] ..." (Open MPI, about networks that it cannot
  // use) and "hwloc/..." (where there is no /sys). The launcher's own lines are not in these files.
  std::string words_of_program(int processes) const {
    static const std::regex of_mpi(R"(^(\[[^\]\s]+(:\d+\]|\]\[\[)|hwloc/))");
    std::string words;
    for (int process = 0; process < processes; ++process) {
      std::istringstream all(read(error_file(process)));
      for (std::string line; std::getline(all, line);) {
        if (!std::regex_search(line, of_mpi)) words += line + "\n";
      }
    }
    return words;
  }

  // The steps of a run as text, without the values that depend on the clock.
  std::string steps_of(const std::string& run) const {
    std::string text;
    std::ifstream file(path("out/" + run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      nlohmann::json step = nlohmann::json::parse(line);
      for (auto item = step.begin(); item != step.end();)
        item = item.key().starts_with("perf/") ? step.erase(item) : std::next(item);
      text += step.dump() + "\n";
    }
    return text;
  }

 private:
  static std::string error_file(int process) { return "stderr." + std::to_string(process); }
};

}  // namespace switchyard::cli_test
