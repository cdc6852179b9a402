// Ones on a GPU, made once: a step that is recorded as a graph (core/graph.h) can copy nothing from the host.
#pragma once

#include "autograd/context.h"

namespace switchyard {

// At least `count` ones, f32 [n], n >= count, for reading alone; they stay for the life of the process. On
// the context's device, which is a GPU, real or emulated.
Tensor shared_ones(const Context& context, std::int64_t count);

}  // namespace switchyard
