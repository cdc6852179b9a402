// A mesh of one rank, for ops that need a context.
#pragma once

#include <functional>

#include "autograd/context.h"

namespace switchyard::bench {

// Calls body on this thread with a context that uses `pool` and allocates tensors in `memory`.
void on_one_rank(ThreadPool& pool, const Memory& memory, const std::function<void(Context&)>& body);

}  // namespace switchyard::bench
