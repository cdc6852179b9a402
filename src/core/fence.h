// Reports the op that ran when an access to a fenced device (core/device.h) faulted.
#pragma once

#include <string_view>

namespace switchyard {

// Sets the op that this thread runs, "" between ops, and returns the previous one. InsideOp calls it; the
// name moves with a rank to another thread.
std::string_view exchange_running_op(std::string_view op);
std::string_view running_op();

// From now on, a fault that would end this process first prints a line that names the op of the faulting
// thread; then the process ends as it would have. One call is enough.
void name_the_op_of_faults();

}  // namespace switchyard
