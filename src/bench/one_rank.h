// A world of one rank for ops that want a context.
#pragma once

#include <functional>

#include "autograd/context.h"

namespace switchyard::bench {

// Calls body on this thread with a context that works on `pool`, with tensors in `memory`.
void on_one_rank(ThreadPool& pool, const Memory& memory, const std::function<void(Context&)>& body);

}  // namespace switchyard::bench
