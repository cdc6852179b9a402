// switchyard selftest: compares every kernel on this machine with its reference implementation.
#pragma once

#include <span>
#include <string>

#include "kernels/testing/cases.h"

namespace switchyard {

int selftest_command(std::span<const std::string> args);

// Tests the given kernels instead of all. Returns the exit status: 0, or 3 when one differs.
int run_selftest(std::span<const selftest::KernelCases> kernels, std::span<const std::string> args);

}  // namespace switchyard
