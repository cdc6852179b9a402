// Commands that run in all the processes that mpirun started, or in one.
#pragma once

#include <functional>

#include "parallel/comm/processes.h"

namespace switchyard {

// Joins the other processes and runs `body`, whose exit status this returns. An error is agreed on, reported
// once, and gives the status.
int run_in_processes(const std::function<int(Processes&)>& body);

}  // namespace switchyard
