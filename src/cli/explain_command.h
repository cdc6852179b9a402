#pragma once

#include <span>
#include <string>

namespace switchyard {

// `switchyard explain`: how every parameter and activation is laid out, and why. Returns the exit status.
int explain_command(std::span<const std::string> args);

}  // namespace switchyard
