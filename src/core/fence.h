// What a fault on a fenced device (core/device.h) says: the op that ran.
#pragma once

#include <string_view>

namespace switchyard {

// The op that this thread runs, "" between ops. Set by InsideOp; goes with a rank to another thread. Returns
// the one before.
std::string_view exchange_running_op(std::string_view op);
std::string_view running_op();

// From now on a fault that this process does not survive is announced by a line that names the op of the
// faulting thread; then the process ends as it would have. Once is enough.
void name_the_op_of_faults();

}  // namespace switchyard
