// switchyard: one program, one file per command.
#pragma once

namespace switchyard {

// Runs the command line of main() and returns its exit status. Prints every error by itself. The shared
// library shows it, so that the program in a Python package needs no second copy of the engine.
int run_program(int argc, char** argv);

}  // namespace switchyard
