// Reports a command's failure to the user: one line on standard error and an exit status.
#pragma once

#include <exception>
#include <string>

namespace switchyard {

// Prints "switchyard: <message>" for the exception being handled, except for Silent, and returns the exit
// status. Call it within a catch block.
int report_error();

// The exit status after a signal stopped a run that saved its state: the same command resumes it.
constexpr int kStoppedBySignal = 75;

// Prints `switchyard: message` on standard error as one line, whatever text from users or files is in it.
void print_error(std::string message);

}  // namespace switchyard
