// switchyard data: turns text into a folder of tokens, and shows what such a folder holds.
#pragma once

#include <span>
#include <string>

namespace switchyard {

int data_command(std::span<const std::string> args);

}  // namespace switchyard
