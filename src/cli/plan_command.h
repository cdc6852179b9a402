#pragma once

#include <span>
#include <string>

namespace switchyard {

// `switchyard plan`: a step's memory, collectives and time, without running it. Returns the exit status.
int plan_command(std::span<const std::string> args);

}  // namespace switchyard
