// switchyard verify: runs stored cases of other implementations,
// or several layouts of one model, and compares all numbers.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `verify`: CASE… [key=value…] [--tolerance T] [--json FILE] [--all] [--help], or
// --mesh "key=value …" … [CONFIG.yml] [key=value…] [--inject-fault "…"] and the same options. Prints one
// table for each case to standard output. A case that cannot run gets one line on standard error, and the
// others still run. Returns 0 when all pass; 3 when one differs; else 2 when a case could not run because of
// its files or the command line, or 1 because of a failure at run time. Throws Error(usage) for a wrong
// command line, Error(runtime) when FILE cannot be written.
int verify_command(std::span<const std::string> args);

}  // namespace switchyard
