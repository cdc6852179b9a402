// Places of a long job where a test stops the process, so that no test guesses how long a machine takes.
#pragma once

#include <string_view>

namespace switchyard {

// Stops the process (SIGSTOP) the first time that it comes by, where the environment variable
// SWITCHYARD_STOP_AT is `name`. Whoever waits for the process sees the stop, sends what the test is about,
// and lets the process go on.
void stopping_point(std::string_view name);

}  // namespace switchyard
