// switchyard data: text to a folder of tokens, and what is in one.
#pragma once

#include <span>
#include <string>

namespace switchyard {

int data_command(std::span<const std::string> args);

}  // namespace switchyard
