// How a command's failure reaches the user: one line on standard error and an exit status.
#pragma once

#include <exception>

namespace switchyard {

// Prints "switchyard: <message>" for the exception being handled, except for Silent, and returns the exit
// status. Call it within a catch block.
int report_error();

// Exit status of what a signal stopped after it saved its state: the same command goes on.
constexpr int kStoppedBySignal = 75;

}  // namespace switchyard
