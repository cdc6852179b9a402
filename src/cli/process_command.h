// Runs a command in all the processes that mpirun started, or in a single process.
#pragma once

#include <functional>

#include "parallel/comm/processes.h"

namespace switchyard {

// Joins the other processes, runs `body` and returns its exit status. The processes agree on an error, which
// is reported once and gives the status.
int run_in_processes(const std::function<int(Processes&)>& body);

}  // namespace switchyard
