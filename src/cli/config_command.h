// switchyard config: shows the settings that a command line gives, or the table of all keys.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `config`: [--list] [--json FILE] [--help] [CONFIG.yml] [key=value …]. Prints to
// standard output; --json writes the same as data to FILE instead. Returns 0; throws Error(usage) for a wrong
// command line, Error(runtime) when FILE cannot be written.
int config_command(std::span<const std::string> args);

}  // namespace switchyard
