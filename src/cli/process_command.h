// Commands that run in all the processes that mpirun started, or in one.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "config/config.h"
#include "dist/comm/processes.h"

namespace switchyard {

// Joins the other processes and runs `body`, whose exit status this returns. An error is agreed on, reported
// once, and gives the status.
int run_in_processes(const std::function<int(Processes&)>& body);

// The config that `make` gives of `settings`, with at least one rank a process.
Config config_for(const Processes& processes, std::span<const std::string> settings,
                  const std::function<Config(std::span<const std::string>)>& make);

}  // namespace switchyard
