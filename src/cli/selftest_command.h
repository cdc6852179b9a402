// switchyard selftest: every kernel on this machine against its scalar twin.
#pragma once

#include <span>
#include <string>

#include "kernels/testing/cases.h"

namespace switchyard {

int selftest_command(std::span<const std::string> args);

// The same of other kernels than all. Returns the exit status: 0, or 3 where one differs.
int run_selftest(std::span<const selftest::KernelCases> kernels, std::span<const std::string> args);

}  // namespace switchyard
