// switchyard verify: runs stored cases of other implementations, or layouts of one model, and compares every
// number.
#pragma once

#include <span>
#include <string>

namespace switchyard {

// `args` follow the word `verify`: CASE… [key=value…] [--tolerance T] [--json FILE] [--all] [--help],
// or --mesh "key=value …" … [CONFIG.yml] [key=value…] [--inject-fault "…"] and the same options. Prints
// a table a case to standard output; a case that cannot be run gets one line on standard error and the others
// still run. Returns 0 when all pass, 3 when one differs, else 2 (1) when one could not be run because its
// files or the command line are wrong (because of a failure at run time). Throws Error(usage) for a wrong
// command line, Error(runtime) when FILE cannot be written.
int verify_command(std::span<const std::string> args);

}  // namespace switchyard
