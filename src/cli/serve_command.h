// switchyard serve: serves a model's texts over HTTP.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `serve`. Returns the exit status; throws Error.
int serve_command(std::span<const std::string> args);

}  // namespace switchyard
