// Prints what commands report.
#pragma once

#include <string>

#include "commands/commands.h"

namespace switchyard {

// On standard output; returns the exit status.
int print_report(const Report& report);
// A line on standard output, and one on standard error.
void print_note(const std::string& line);
void print_warning(const std::string& line);

}  // namespace switchyard
