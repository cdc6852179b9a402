#pragma once

#include <span>
#include <string>

namespace switchyard {

// Prints what this machine and this build have, and what they lack. Returns the exit status: 1 where
// --require names a missing part.
int doctor_command(std::span<const std::string> args);

}  // namespace switchyard
