#pragma once

#include <span>
#include <string>

namespace switchyard {

// `switchyard plan`: memory, collectives and time of a step, without running it. Returns the exit status.
int plan_command(std::span<const std::string> args);

}  // namespace switchyard
