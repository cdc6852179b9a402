// switchyard generate: generates text with a model, token by token.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `generate`. Returns the exit status; throws Error.
int generate_command(std::span<const std::string> args);

}  // namespace switchyard
