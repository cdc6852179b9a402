// `switchyard bench`: measures how fast this machine is, and how close the kernels come to its peaks.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// Returns the exit status.
int bench_command(std::span<const std::string> args);

}  // namespace switchyard
