// `switchyard chat`: a conversation with a model at a terminal.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// Returns the exit status. Throws Error.
int chat_command(std::span<const std::string> args);

}  // namespace switchyard
