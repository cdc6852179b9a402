// switchyard selftest: every kernel on this machine against its scalar twin.
#pragma once

#include <span>
#include <string>

#include "selftest/kernel.h"

namespace switchyard {

int selftest_command(std::span<const std::string> args);

// The same of other kernels than all. Returns 0, or 3 where one differs.
int selftest_command(std::span<const selftest::Kernel> kernels, std::span<const std::string> args);

}  // namespace switchyard
