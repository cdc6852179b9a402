// switchyard inspect: shows the content of a safetensors file, a Hugging
// Face folder, a checkpoint or a run, and how two of them differ.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `inspect`: PATH [PATH] [--all] [--statistics] [--prove] [--json FILE] [--help].
// Returns 0; 1 when --prove found damage; 3 when two paths differ. Throws Error(usage) for a wrong command
// line and for a path that cannot be opened.
int inspect_command(std::span<const std::string> args);

}  // namespace switchyard
