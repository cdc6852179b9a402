// How a command's failure reaches the user: one line on standard error and an exit status.
#pragma once

#include <exception>
#include <string>

namespace switchyard {

// Prints "switchyard: <message>" for the exception being handled, except for Silent, and returns the exit
// status. Call it within a catch block.
int report_error();

// Exit status of what a signal stopped after it saved its state: the same command resumes it.
constexpr int kStoppedBySignal = 75;

// `switchyard: message` on standard error: one line, whatever text of the user's or of a file's is in it.
void print_error(std::string message);

}  // namespace switchyard
