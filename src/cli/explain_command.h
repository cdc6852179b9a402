#pragma once

#include <span>
#include <string>

namespace switchyard {

// `switchyard explain`: shows the layout of every parameter and activation, and why. Returns the exit status.
int explain_command(std::span<const std::string> args);

}  // namespace switchyard
