#include "parallel/comm/processes.h"

#include <signal.h>

#include <array>
#include <cstdlib>

#include "core/cores.h"
#include "parallel/comm/local.h"

namespace switchyard {
namespace {

class OneProcess : public Processes {
 public:
  int index() const override { return 0; }
  int count() const override { return 1; }
  int cores() const override { return usable_cores(); }
  std::chrono::system_clock::time_point start() const override { return start_; }
  void agree(const Error* failure, double) override {
    agreed_ = true;
    if (failure != nullptr) throw *failure;
  }
  bool agreed() const override { return agreed_; }
  void run_ranks(Workers& workers, double timeout_seconds, Device& device,
                 const std::function<void(Communicator&)>& body) override {
    agreed_ = true;
    run_local_ranks(workers, timeout_seconds, [&](Communicator& comm) {
      comm.use_device(device);
      body(comm);
    });
  }

 private:
  const std::chrono::system_clock::time_point start_ = std::chrono::system_clock::now();
  bool agreed_ = false;
};

int number_of(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

}  // namespace

Launch launch_from_environment() {
  // Open MPI; MPICH and its derivatives; Slurm's PMIx, which has a separate variable for the size.
  constexpr std::array<std::array<const char*, 2>, 3> kLaunchers{
      {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
       {"PMI_RANK", "PMI_SIZE"},
       {"PMIX_RANK", "SLURM_NTASKS"}}};
  for (const auto& [rank, size] : kLaunchers) {
    if (std::getenv(rank) != nullptr) return {true, number_of(rank, 0), number_of(size, 0)};
  }
  return {};
}

std::unique_ptr<Processes> one_process() {
  return std::make_unique<OneProcess>();
}

// A launcher that sees one process fail ends the others at once. Process 0 may not even have reached main()
// then (seen with Open MPI 5), and its line, the only one, would never be printed. So the others end last.
void fail_after_process_0(Error::Kind kind) {
  // Bounded: a launcher that leaves the others alone when process 0 ends must not wait for ever.
  constexpr timespec kPatience{.tv_sec = 5, .tv_nsec = 0};
  sigset_t terminated;
  sigemptyset(&terminated);
  sigaddset(&terminated, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminated, nullptr);
  ::sigtimedwait(&terminated, nullptr, &kPatience);
  throw Silent(kind);
}

void require_one_process(std::string_view command) {
  const Launch launch = launch_from_environment();
  if (!launch.launched || launch.processes == 1) return;
  if (launch.process != 0) fail_after_process_0(Error::Kind::usage);
  fail_usage(
      "[comm] expected `train`, `generate`, `serve` or `eval` under mpirun, got `{}`, which runs in one "
      "process; "
      "start it without mpirun, with all ranks in it (ranks=N)",
      command);
}

}  // namespace switchyard
