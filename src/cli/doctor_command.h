#pragma once

#include <span>
#include <string>

namespace switchyard {

// What this machine and this build have, and what they lack. Exit status 1 where --require names what is
// missing.
int doctor_command(std::span<const std::string> args);

}  // namespace switchyard
