// A build without MPI: several processes are an error, never several runs of one rank each.
#include "parallel/comm/processes.h"

namespace switchyard {

std::unique_ptr<Processes> join_processes() {
  const Launch launch = launch_from_environment();
  if (!launch.launched || launch.processes == 1) return one_process();
  if (launch.process != 0) fail_after_process_0(Error::Kind::usage);
  fail_usage(
      "[comm] expected a build with MPI under mpirun, got one without; install libopenmpi-dev and configure "
      "the "
      "build again, or use threads: ranks={} without mpirun",
      launch.processes > 0 ? std::to_string(launch.processes) : "N");
}

bool knows_mpi() {
  return false;
}

}  // namespace switchyard
