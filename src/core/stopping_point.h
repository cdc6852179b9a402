// Points of a long job at which a test stops the process, so that no test depends on a machine's speed.
#pragma once

#include <string_view>

namespace switchyard {

// Stops the process (SIGSTOP) at the first call whose `name` equals the environment variable
// SWITCHYARD_STOP_AT. The parent process sees the stop, sends the signal
// under test, and lets the process continue.
void stopping_point(std::string_view name);

}  // namespace switchyard
