// topology=machine: the rates of the processor that the command runs on.
#pragma once

#include <string>

#include "plan/topology.h"

namespace switchyard {

// Measures the rates of this machine with our own kernels, all cores at work, once a process: some five
// seconds. The ranks share them; latencies are those of configs/topology/cpu.yml.
Topology machine_topology(int ranks);

// Says the measured rates in a line, those of the whole machine.
std::string machine_text(const Topology& machine, int ranks);

}  // namespace switchyard
