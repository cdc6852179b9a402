// switchyard convert: converts weights of a Hugging Face folder to a checkpoint, and back.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `convert`: [options] SRC DST. Returns 0, or 3 when --verify found a difference.
// Throws Error(usage) before anything is written, Error(runtime) when writing failed.
int convert_command(std::span<const std::string> args);

}  // namespace switchyard
